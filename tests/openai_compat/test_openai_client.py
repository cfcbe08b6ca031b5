"""The official client against the app: over a live server (sync) and in process (async)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from backends.registry import create_backend
from models.catalogue import Catalogue
from tests.openai_compat.wire import card, make_app

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The base URL of an app that runs in a thread as long as the block."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    started = threading.Event()
    startup = server.startup

    async def startup_and_tell(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        started.set()

    server.startup = startup_and_tell  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(20)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with serving(make_app()) as url:
        yield url


@pytest.fixture
def client(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, api_key="not-needed", max_retries=0) as client:
        yield client


def test_a_chat_parses_into_typed_objects(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES)

    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7


def test_a_stream_gives_the_text_of_the_plain_answer_and_its_usage(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello!"
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7


def test_a_text_completion_has_text_and_usage(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Once")

    assert answer.choices[0].text == "Hello!"
    assert answer.usage is not None


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    listed = client.models.list().data

    assert [model.id for model in listed] == ["tiny"]
    assert client.models.retrieve("tiny") == listed[0]


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_not_found_at_once(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="org/nope", messages=MESSAGES, stream=stream)

    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


def test_an_unknown_id_with_a_slash_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/nope")


def test_an_invalid_request_is_unprocessable_with_its_param(client: OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)

    assert caught.value.param == "temperature"


def test_extra_body_picks_the_backend(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"backend": "fake"})

    assert answer.model_extra == {"backend": "fake"}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"backend": "nope"})


def test_a_raw_response_keeps_the_callers_request_id(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, extra_headers={"X-Request-ID": "mine-1"}
    )

    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse()._request_id == "mine-1"


def test_logprobs_parse(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1)

    assert answer.choices[0].logprobs is not None


def test_head_has_no_body_and_the_connection_stays_in_step(base_url: str) -> None:
    with httpx.Client(base_url=base_url) as http:
        head = http.head("/models")
        get = http.get("/models")

    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("name", ["org%2Fnope", "org/nope", "%D0%BF", "load%2F..", "%2e%2e%2fetc"])
def test_odd_ids_are_answered_with_json(base_url: str, name: str) -> None:
    reply = httpx.get(f"{base_url}/models/{name}")

    assert reply.status_code in (404, 405)
    assert reply.json()["error"]["code"]


# -- tools, reasoning and schemas, with the fake backend behind the app ------------------------------------------


@pytest.fixture(scope="module")
def fake_url() -> Iterator[str]:
    cards = [card("tiny")]
    backend = create_backend("fake", catalogue=Catalogue(cards))
    with serving(make_app(backend, cards=cards)) as url:
        yield url


@pytest.fixture
def fake(fake_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=fake_url, api_key="not-needed", max_retries=0) as client:
        yield client


class Weather(BaseModel):
    """Get the weather."""

    model_config = ConfigDict(extra="forbid")

    city: str
    days: int = Field(ge=2)


TOOLS: Any = [openai.pydantic_function_tool(Weather)]
THINK: Any = {"chat_template_kwargs": {"enable_thinking": True}}


def test_a_required_tool_call_parses(fake: OpenAI) -> None:
    answer = fake.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="required"
    )

    (choice,) = answer.choices
    (call,) = choice.message.tool_calls or ()
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert call.type == "function"
    assert call.function.name == "Weather"
    assert Weather.model_validate_json(call.function.arguments) == Weather(city="fake", days=2)


def test_a_streamed_tool_call_adds_up_to_the_plain_one(fake: OpenAI) -> None:
    with fake.chat.completions.stream(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="required"
    ) as stream:
        events = [event.type for event in stream]
        answer = stream.get_final_completion()

    (call,) = answer.choices[0].message.tool_calls or ()
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.parsed_arguments == Weather(city="fake", days=2)
    assert "tool_calls.function.arguments.delta" in events


def test_a_conversation_goes_on_after_a_tool_answered(fake: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "The Weather, please"}]
    first = fake.chat.completions.create(model="tiny", messages=asked, tools=TOOLS).choices[0].message
    (call,) = first.tool_calls or ()
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "rain"}]

    second = fake.chat.completions.create(model="tiny", messages=[*asked, first, *results], tools=TOOLS)

    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == "rain"


def test_reasoning_has_both_names_in_a_plain_answer(fake: OpenAI) -> None:
    answer = fake.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=THINK)

    extra = answer.choices[0].message.model_extra or {}
    assert answer.choices[0].message.content == "Hi"
    assert extra["reasoning_content"] == extra["reasoning"] == "They said: Hi"
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_streams_before_the_text_under_both_names(fake: OpenAI, name: str) -> None:
    stream = fake.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, extra_body=THINK)
    deltas = [chunk.choices[0].delta for chunk in stream]

    told = ["text" if delta.content else "thought" for delta in deltas if delta.content or delta.model_extra]
    assert "".join((delta.model_extra or {}).get(name, "") for delta in deltas) == "They said: Hi"
    assert told == ["thought"] * 3 + ["text"]


def test_an_answer_meets_the_schema_that_the_client_made(fake: OpenAI) -> None:
    answer = fake.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Weather)

    assert answer.choices[0].message.parsed == Weather(city="fake", days=2)


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_structured_outputs_pass_in_the_extra_body(fake: OpenAI, kind: str) -> None:
    extra: Any = {"structured_outputs": {"choice": ["yes", "no"]}}
    if kind == "chat":
        said = fake.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=extra)
        assert said.choices[0].message.content == "yes"
    else:
        assert fake.completions.create(model="tiny", prompt="?", extra_body=extra).choices[0].text == "yes"


def test_a_constraint_that_the_backend_cannot_meet_is_a_bad_request(fake: OpenAI) -> None:
    extra: Any = {"structured_outputs": {"regex": "a+"}}
    with pytest.raises(openai.BadRequestError) as caught:
        fake.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=extra, stream=True)

    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "structured_outputs.regex")


async def test_calls_side_by_side_are_all_complete() -> None:
    transport = httpx.ASGITransport(app=make_app())
    async with (
        httpx.AsyncClient(transport=transport) as http,
        AsyncOpenAI(base_url="http://test/v1", api_key="x", http_client=http, max_retries=0) as client,
    ):

        async def plain() -> str | None:
            answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
            return answer.choices[0].message.content

        async def streamed() -> str:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(plain(), streamed(), plain(), streamed(), plain(), streamed())

    assert set(texts) == {"Hello!"}
