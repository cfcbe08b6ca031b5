"""The unmodified OpenAI SDK finds what it looks for."""

from __future__ import annotations

import asyncio

import openai
from openai.types.chat import ChatCompletionMessageParam

from openai_compat.conformance.api import Api
from openai_compat.conformance.check import NotOffered, extension, openai_api, raises

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Write a long story about the sea."}
]


@openai_api
def cl_sdk_chat__a_chat_completion_parses_into_typed_objects(service: Api, sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model=service.model, messages=MESSAGES, max_tokens=8, temperature=0)

    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@openai_api
def cl_sdk_stream__a_stream_gives_the_plain_text_one_id_and_the_same_usage(
    service: Api, sdk: openai.OpenAI
) -> None:
    plain = sdk.chat.completions.create(model=service.model, messages=MESSAGES, max_tokens=12, temperature=0)
    with sdk.chat.completions.create(
        model=service.model,
        messages=MESSAGES,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == plain.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1
    usage = chunks[-1].usage
    assert usage
    assert plain.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        plain.usage.prompt_tokens,
        plain.usage.completion_tokens,
    )


@openai_api
def cl_sdk_completions__the_legacy_call_gives_text_and_usage(service: Api, sdk: openai.OpenAI) -> None:
    try:
        answer = sdk.completions.create(model=service.model, prompt="The sea is", max_tokens=8, temperature=0)
    except openai.APIStatusError as error:
        if error.status_code != 501:
            raise
        raise NotOffered(str(error)) from None

    assert answer.choices[0].text
    assert answer.usage
    assert answer.usage.completion_tokens > 0


@openai_api
def cl_sdk_models_list__the_list_has_the_model_with_its_fields(service: Api, sdk: openai.OpenAI) -> None:
    models = {model.id: model for model in sdk.models.list()}

    model = models[service.model]
    assert model.object == "model"
    assert isinstance(model.created, int)
    assert model.owned_by


@openai_api
def cl_sdk_models_retrieve__retrieve_gives_the_lists_model_or_not_found(
    service: Api, sdk: openai.OpenAI
) -> None:
    listed = next(model for model in sdk.models.list() if model.id == service.model)

    try:
        retrieved = sdk.models.retrieve(service.model)
    except openai.NotFoundError:
        raise NotOffered("404 for the model's own id") from None
    assert retrieved == listed
    with raises(openai.NotFoundError):
        sdk.models.retrieve("nobody/has-this-model")


@openai_api
def cl_sdk_not_found__an_unknown_model_is_not_found_at_once(sdk: openai.OpenAI) -> None:
    with raises(openai.NotFoundError):
        sdk.chat.completions.create(model="nobody/has-this-model", messages=MESSAGES)
    with raises(openai.NotFoundError):
        sdk.chat.completions.create(model="nobody/has-this-model", messages=MESSAGES, stream=True)


@extension
def cl_sdk_error_fields__exceptions_carry_the_error_objects_fields(service: Api, sdk: openai.OpenAI) -> None:
    with raises(openai.NotFoundError) as unknown:
        sdk.chat.completions.create(model="nobody/has-this-model", messages=MESSAGES)
    with raises(openai.UnprocessableEntityError) as invalid:
        sdk.chat.completions.create(
            model=service.model, messages=MESSAGES, temperature=9, extra_headers={"X-Request-ID": "sdk-err-1"}
        )

    assert (unknown.value.code, unknown.value.type) == ("model_not_found", "invalid_request_error")
    assert unknown.value.request_id
    assert (invalid.value.code, invalid.value.param) == ("validation_error", "temperature")
    assert (invalid.value.type, invalid.value.request_id) == ("invalid_request_error", "sdk-err-1")


@openai_api
def cl_sdk_bad_request__an_invalid_request_says_what_is_wrong(service: Api, sdk: openai.OpenAI) -> None:
    with raises(openai.BadRequestError, openai.UnprocessableEntityError) as caught:
        sdk.chat.completions.create(model=service.model, messages=MESSAGES, temperature=9)

    assert "temperature" in caught.value.message


@openai_api
def cl_sdk_authentication_error__a_wrong_key_is_an_authentication_error(guarded: Api) -> None:
    with openai.OpenAI(base_url=f"{guarded.base_url}/v1", api_key="wrong", max_retries=0) as client:
        with raises(openai.AuthenticationError):
            client.chat.completions.create(model=guarded.model, messages=MESSAGES)
        with raises(openai.AuthenticationError):
            client.chat.completions.create(model=guarded.model, messages=MESSAGES, stream=True)
        with raises(openai.AuthenticationError):
            client.models.list()


@openai_api
def cl_sdk_raw_response__with_raw_response_gives_headers_and_the_same_object(
    service: Api, sdk: openai.OpenAI
) -> None:
    raw = sdk.chat.completions.with_raw_response.create(
        model=service.model, messages=MESSAGES, max_tokens=8, temperature=0
    )
    plain = sdk.chat.completions.create(model=service.model, messages=MESSAGES, max_tokens=8, temperature=0)

    assert raw.headers["content-type"].startswith("application/json")
    parsed = raw.parse()
    assert parsed.choices[0].message.content == plain.choices[0].message.content


@extension
def cl_sdk_request_id__the_request_id_reaches_the_sdk_and_ones_own_is_kept(
    service: Api, sdk: openai.OpenAI
) -> None:
    minted = sdk.chat.completions.create(model=service.model, messages=MESSAGES, max_tokens=1)
    raw = sdk.chat.completions.with_raw_response.create(
        model=service.model, messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-ID": "mine-42"}
    )

    assert minted._request_id
    assert raw.headers["x-request-id"] == "mine-42"
    assert raw.parse()._request_id == "mine-42"


@extension
def cl_sdk_extra_body_backend__extra_body_picks_the_backend(service: Api, sdk: openai.OpenAI) -> None:
    backend = service.entry()["backend"]
    answer = sdk.chat.completions.create(
        model=service.model, messages=MESSAGES, max_tokens=1, extra_body={"backend": backend}
    )

    assert (answer.model_extra or {})["backend"] == backend
    with raises(openai.BadRequestError):
        sdk.chat.completions.create(
            model=service.model, messages=MESSAGES, max_tokens=1, extra_body={"backend": "nonsense"}
        )


@openai_api
async def cl_async_side_by_side__six_calls_at_once_are_all_complete(service: Api) -> None:
    key = service.token or "not-needed"
    async with openai.AsyncOpenAI(
        base_url=f"{service.base_url}/v1", api_key=key, max_retries=0, timeout=120
    ) as client:

        async def plain() -> tuple[str, str | None]:
            answer = await client.chat.completions.create(
                model=service.model, messages=MESSAGES, max_tokens=12, temperature=0
            )
            return answer.choices[0].message.content or "", answer.choices[0].finish_reason

        async def streamed() -> tuple[str, str | None]:
            text, reason = "", None
            async with await client.chat.completions.create(
                model=service.model, messages=MESSAGES, max_tokens=12, temperature=0, stream=True
            ) as stream:
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                    reason = chunk.choices[0].finish_reason or reason
            return text, reason

        answers = await asyncio.gather(plain(), streamed(), plain(), streamed(), plain(), streamed())

    assert all(text and reason in ("stop", "length") for text, reason in answers)
