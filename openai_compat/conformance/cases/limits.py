"""Where it ends: the context, the rate, the number of completions at once."""

from __future__ import annotations

import time
from typing import Any

import httpx

from openai_compat.conformance.api import (
    CHAT,
    COMPLETIONS,
    Api,
    contract_error,
    error_of,
    offered,
    side_by_side,
    user,
)
from openai_compat.conformance.check import NotApplicable, extension, given, openai_api, within

TOO_LONG = "The sea is deep and the ships on it are many. "


def overlong(api: Api) -> str:
    """Text of more tokens than the model's context holds, at no less than one token per word."""
    context = api.entry().get("context_length") or 8192
    return TOO_LONG * (context // 10 + 50)


@openai_api
def overlong_prompt__it_is_a_400_and_never_cut(service: Api) -> None:
    error_of(service.chat(overlong(service)), (400,))
    service.assert_alive()


@openai_api
def overlong_prompt_code__it_carries_the_code_by_which_agents_compact(service: Api) -> None:
    assert error_of(service.chat(overlong(service)), (400,))["code"] == "context_length_exceeded"


@openai_api
def overlong_prompt_streaming__it_is_refused_before_any_stream(service: Api) -> None:
    response = service.chat(overlong(service), stream=True)

    error_of(response, (400,))


@extension
@given("stream", [False, True])
def overlong_prompt_numbers__both_numbers_and_the_usual_sentence_are_told(service: Api, stream: bool) -> None:
    response = service.chat(overlong(service), stream=stream)

    error = contract_error(response, 400, "invalid_request_error", "context_length_exceeded", "messages")
    context, tokens = error["context_length"], error["prompt_tokens"]
    assert context == service.entry()["context_length"]
    assert tokens > context
    assert error["message"] == (
        f"This model's maximum context length is {context} tokens. "
        f"However, your messages resulted in {tokens} tokens."
    )


@extension
@within(300)
def little_room_ends_with_length__the_total_never_passes_the_context(small: Api) -> None:
    context = small.entry()["context_length"]
    asked = small.completion_body([300] * (context - 6), max_tokens=50, ignore_eos=True)
    body = offered(small.post(COMPLETIONS, asked, timeout=280))

    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == context - 6
    assert context - 1 <= body["usage"]["total_tokens"] <= context


@extension
@within(180)
def little_room_ends_with_length__a_prompt_of_the_whole_context_is_refused(small: Api) -> None:
    context = small.entry()["context_length"]

    small.completion(max_tokens=1)

    error = error_of(small.complete([300] * context), (400,))
    assert error["code"] == "context_length_exceeded"
    assert (error["prompt_tokens"], error["context_length"]) == (context, context)


def empty_the_bucket(api: Api, number: int = 60) -> list[httpx.Response]:
    """That many requests as fast as they go."""
    return side_by_side([lambda: api.http.get("/v1/models")] * number)


def fill_the_bucket() -> None:
    """At 10 requests a second a burst of 20 is there again after 2 s."""
    time.sleep(2.2)


@extension
def limits_burst_is_429__with_when_to_come_again(limited: Api) -> None:
    fill_the_bucket()
    answers = empty_the_bucket(limited)
    chats = [limited.chat(stream=stream, max_tokens=1) for stream in (False, True)]

    refused = [answer for answer in answers if answer.status_code == 429]
    assert 20 <= len(answers) - len(refused) <= 40
    for answer in [*refused, *(chat for chat in chats if chat.status_code == 429)]:
        contract_error(answer, 429, "rate_limit_error", "rate_limit_exceeded")
        assert answer.json()["detail"] == "Rate limit exceeded"
        assert int(answer.headers["retry-after"]) >= 1
        assert float(answer.headers["retry-after-ms"]) > 0
    assert refused


@extension
def limits_probes_never_limited__not_even_while_the_bucket_is_empty(limited: Api) -> None:
    answers = empty_the_bucket(limited)
    probes = side_by_side(
        [lambda path=path: limited.http.get(path) for path in ("/health", "/ready", "/metrics")] * 15
    )

    assert any(answer.status_code == 429 for answer in answers)
    assert {probe.status_code for probe in probes} == {200}


@extension
def limits_sdk_recovers__forty_five_calls_come_through_and_some_were_held_back(limited: Api) -> None:
    try:
        import openai
    except ImportError:
        raise NotApplicable("needs the package openai") from None
    fill_the_bucket()
    statuses: list[int] = []

    def count(response: Any) -> None:
        statuses.append(response.status_code)

    with openai.OpenAI(
        base_url=f"{limited.base_url}/v1",
        api_key=limited.token or "",
        max_retries=6,
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [count]}, timeout=60),
    ) as client:
        for _ in range(45):
            assert client.models.list().data

    assert statuses.count(200) == 45
    assert statuses.count(429) > 0


@extension
@within(180)
def limits_concurrency_503__what_is_over_the_limit_is_refused_at_once(service: Api) -> None:
    fields: dict[str, Any] = {"max_tokens": 64, "stream": True, **service.unending}

    def long_stream() -> tuple[httpx.Response, float]:
        started = time.monotonic()
        response = service.chat("Count from one to a thousand.", **fields)
        return response, time.monotonic() - started

    results = side_by_side([long_stream] * 16)
    served = [response for response, _ in results if response.status_code == 200]
    refused = [(response, took) for response, took in results if response.status_code != 200]

    assert (len(served), len(refused)) == (10, 6)
    for response, took in refused:
        contract_error(response, 503, "overloaded_error", "concurrency_limit")
        assert response.json()["detail"] == "Concurrency limit exceeded"
        assert int(response.headers["retry-after"]) >= 1
        assert took < 2
    assert all(response.text.endswith("data: [DONE]\n\n") for response in served)


@extension
@within(180)
def limits_full_capacity__as_many_as_the_limit_are_all_answered(service: Api) -> None:
    body = {"model": service.model, "messages": [user("Count to ten.")], "max_tokens": 24}
    answers = side_by_side([lambda: service.post(CHAT, body)] * 10)

    assert [answer.status_code for answer in answers] == [200] * 10
