"""What users of OpenAI's Python client do besides its quick start."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import Served

ASK = [{"role": "user", "content": "What is the weather like in Oslo, and in Rome?"}]


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=3)


TOOL = openai.pydantic_function_tool(GetWeather, name="get_weather")
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
def client(llamacpp: Served) -> OpenAI:
    return OpenAI(base_url=llamacpp.base_url, api_key="not-needed", max_retries=0)


def test_the_stream_helper_gives_a_calls_arguments_parsed(client: OpenAI, llamacpp: Served) -> None:
    with client.chat.completions.stream(
        model=llamacpp.model, messages=ASK, tools=[TOOL], tool_choice=NAMED
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert [event.name for event in done] == ["get_weather"]
    assert "".join(piece.arguments_delta for piece in pieces) == done[0].arguments
    (call,) = final.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_several_calls_of_one_answer_come_apart_in_a_stream(client: OpenAI, llamacpp: Served) -> None:
    with client.chat.completions.stream(
        model=llamacpp.model,
        messages=ASK,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=True,
        max_tokens=120,
        seed=4,
    ) as stream:
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            final = cut.completion

    calls = final.choices[0].message.tool_calls
    assert calls
    assert len({call.id for call in calls}) == len(calls)
    whole = calls if final.choices[0].finish_reason == "tool_calls" else calls[:-1]
    assert all(GetWeather.model_validate_json(call.function.arguments) for call in whole)


def test_a_structured_stream_ends_parsed(client: OpenAI, llamacpp: Served) -> None:
    with client.chat.completions.stream(
        model=llamacpp.model,
        messages=[{"role": "user", "content": "Two days in Rome."}],
        response_format=GetWeather,
    ) as stream:
        deltas = [event for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()

    assert len(deltas) > 3
    assert isinstance(final.choices[0].message.parsed, GetWeather)


def test_the_older_names_under_beta_do_the_same(client: OpenAI, llamacpp: Served) -> None:
    completion = client.beta.chat.completions.parse(
        model=llamacpp.model,
        messages=[{"role": "user", "content": "Two days in Rome."}],
        response_format=GetWeather,
    )

    assert isinstance(completion.choices[0].message.parsed, GetWeather)


def test_parse_gives_the_arguments_of_a_call_parsed(client: OpenAI, llamacpp: Served) -> None:
    completion = client.chat.completions.parse(
        model=llamacpp.model, messages=ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )

    (call,) = completion.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_the_raw_response_has_the_headers_of_a_plain_answer_and_of_a_stream(
    client: OpenAI, llamacpp: Served
) -> None:
    asked: dict[str, Any] = {"model": llamacpp.model, "messages": ASK, "max_tokens": 8}
    plain = client.chat.completions.with_raw_response.create(**asked)
    streamed = client.chat.completions.with_raw_response.create(**asked, stream=True)

    assert plain.headers["x-llm-backend"] == streamed.headers["x-llm-backend"] == "llamacpp"
    assert plain.parse().choices[0].message.content
    assert sum(len(chunk.choices) for chunk in streamed.parse()) > 3


def test_a_streaming_response_is_read_line_by_line_or_left_early(client: OpenAI, llamacpp: Served) -> None:
    asked: dict[str, Any] = {"model": llamacpp.model, "messages": ASK, "max_tokens": 200, "stream": True}
    with client.chat.completions.with_streaming_response.create(**asked) as response:
        first = next(line for line in response.iter_lines() if line)

    assert json.loads(first.removeprefix("data: "))["object"] == "chat.completion.chunk"
    with client.chat.completions.create(**asked) as stream:
        next(iter(stream))
    assert client.chat.completions.create(model=llamacpp.model, messages=ASK, max_tokens=1).id


def test_a_client_that_gives_up_has_a_timeout_and_the_next_one_is_served(
    client: OpenAI, llamacpp: Served
) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(
            model=llamacpp.model, messages=ASK, max_tokens=2000, extra_body={"ignore_eos": True}
        )

    assert client.chat.completions.create(model=llamacpp.model, messages=ASK, max_tokens=1).id


def test_models_are_listed_and_found_by_a_name_with_a_slash(client: OpenAI) -> None:
    assert "smollm2-135m-instruct" in [model.id for model in client.models.list()]
    found = client.models.retrieve("sentence-transformers/all-MiniLM-L6-v2")
    assert found.object == "model"
    assert found.owned_by == "sentence-transformers"


NOT_HERE: dict[str, Callable[[OpenAI], object]] = {
    "images": lambda client: client.images.generate(model="x", prompt="a cat"),
    "speech": lambda client: client.audio.speech.create(model="x", voice="alloy", input="hello"),
    "transcriptions": lambda client: client.audio.transcriptions.create(model="x", file=("a.wav", b"RIFF")),
    "files": lambda client: client.files.create(file=("a.jsonl", b"{}"), purpose="batch"),
    "listing files": lambda client: client.files.list(),
    "batches": lambda client: client.batches.list(),
    "moderations": lambda client: client.moderations.create(input="hello"),
    "responses": lambda client: client.responses.create(model="x", input="hello"),
    "fine-tuning": lambda client: client.fine_tuning.jobs.list(),
    "deleting a model": lambda client: client.models.delete("smollm2-135m-instruct"),
    "stored completions": lambda client: client.chat.completions.retrieve("chatcmpl-1"),
}


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_the_service_does_not_do_is_said_in_an_error_that_the_client_reads(
    client: OpenAI, name: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        NOT_HERE[name](client)

    assert caught.value.status_code in (404, 405)
    assert caught.value.code in ("not_found", "method_not_allowed")
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_the_address_may_come_from_the_environment_with_a_slash_or_without(
    monkeypatch: pytest.MonkeyPatch, llamacpp: Served, end: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", llamacpp.base_url + end)
    monkeypatch.setenv("OPENAI_API_KEY", "not-needed")
    client = OpenAI()

    assert client.models.list().data
    assert client.chat.completions.create(model=llamacpp.model, messages=ASK, max_tokens=1).id


def test_extra_fields_headers_and_query_reach_the_service(client: OpenAI, llamacpp: Served) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=llamacpp.model,
        messages=ASK,
        max_tokens=8,
        extra_body={"top_k": 1, "min_p": 0.1, "made_up": 1},
        extra_headers={"X-Request-ID": "mine-7"},
    )
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(
            model=llamacpp.model,
            messages=ASK,
            extra_body={"made_up": 1},
            extra_query={"strict": "1"},
        )

    assert raw.headers["x-request-id"] == "mine-7"
    assert raw.headers["x-llm-ignored"] == "made_up"
    assert caught.value.param == "made_up"


def test_logprobs_choices_and_seeds_come_as_typed_objects(client: OpenAI, llamacpp: Served) -> None:
    completion = client.chat.completions.create(
        model=llamacpp.model,
        messages=ASK,
        n=2,
        seed=5,
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=4,
        stop=["\n"],
        metadata={"job": "nightly"},
        store=False,
        user="someone",
    )

    assert [choice.index for choice in completion.choices] == [0, 1]
    for choice in completion.choices:
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_a_picture_for_a_model_of_text_is_a_bad_request_that_names_the_part(
    client: OpenAI, llamacpp: Served
) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=llamacpp.model,
            messages=[{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}],
        )

    assert "content[1]" in f"{caught.value.param} {caught.value.message}"


def test_a_client_with_retries_comes_through_limits(tight: Served) -> None:
    statuses: list[int] = []

    def count(response: httpx.Response) -> None:
        statuses.append(response.status_code)

    with OpenAI(
        base_url=tight.base_url,
        api_key="not-needed",
        max_retries=60,  # of a second each, as Retry-After says
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [count]}),
    ) as client:

        def ask(_: int) -> str | None:
            answer = client.chat.completions.create(model=tight.model, messages=ASK, max_tokens=4)
            return answer.choices[0].message.content

        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(ask, range(6)))

    assert all(answers)
    assert 429 in statuses or 503 in statuses
    assert statuses.count(200) == 6
