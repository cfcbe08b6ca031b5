"""The short way into LiteLLM's chat says and hears the same as the long one. Fails where an upgrade parts them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

import pytest

from backends.errors import UpstreamError
from backends.litellm import chat
from backends.litellm.backend import LiteLLMBackend
from backends.litellm.deployment import Deployment
from backends.types import ChatPrompt, ChoiceFinished, Event, ReasoningDelta, TextDelta, ToolCallDelta
from tests.backends.contract import events_of, finished_of, request, text_of
from tests.backends.litellm_backends import a_backend, needs_litellm
from tests.backends.litellm_calls import both
from tests.backends.provider_upstreams import anthropic_format, openai_format, openrouter_format
from tests.backends.provider_upstreams.server import Answer, Call, Upstream, Wire
from tests.backends.test_litellm_formats import HISTORY, TOOLS

pytestmark = needs_litellm

CHAT = ChatPrompt(
    messages=[
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": [{"type": "text", "text": "Wie heißt der Fluß? 🌊"}]},
    ]
)
MODELS = {
    "openai": "gpt-4o",
    "hosted_vllm": "hosted_vllm/qwen",
    "openrouter": "openrouter/meta-llama/llama-3-70b-instruct",
    "anthropic": "claude-sonnet-4-5",
}
PICTURE = {
    "role": "user",
    "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}],
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "sampled": {"temperature": 0.5, "top_p": 0.9, "stop": ("x",), "explicit": frozenset({"top_p", "stop"})},
    "schema": {"response_format": SCHEMA},
}


@pytest.fixture
def provider(provider: Upstream, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", f"{provider.url}/v1")
    monkeypatch.setenv(chat.LIGHT_CLIENT, "False")
    return provider


def says(text: str, *, tool: bool = False) -> Answer:
    """In the format that the request came in."""
    openai_call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'},
    }

    async def answer(call: Call, wire: Wire) -> None:
        if call.path.endswith("/messages"):
            blocks = [anthropic_format.text(text)]
            if tool:
                blocks.append(anthropic_format.tool_use("get_weather", {"city": "Köln"}))
            reason = "tool_use" if tool else "end_turn"
            await anthropic_format.Says(*blocks, stop_reason=reason)(call, wire)
            return
        reason = "tool_calls" if tool else "stop"
        extra: dict[str, Any] = {"tool_calls": [openai_call]} if tool else {}
        if not call.body.get("stream"):
            await wire.json(200, openai_format.completion(text, finish_reason=reason, **extra))
            return
        chunks = [
            openai_format.chunk({"role": "assistant", "content": text[:3]}),
            openai_format.chunk({"content": text[3:]}),
        ]
        if tool:
            chunks.append(openai_format.chunk({"tool_calls": [{"index": 0, **openai_call}]}))
        chunks.append(openai_format.chunk({}, finish_reason=reason))
        await openai_format.stream(
            wire,
            [
                *chunks,
                {**openai_format.chunk(None), "choices": [], "usage": openai_format.usage(9, 3, cached=4)},
            ],
        )

    return answer


def heard(events: list[Event]) -> tuple[Any, ...]:
    usage = finished_of(events).usage
    return (
        text_of(events),
        "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        "".join(f"{e.name or ''}{e.arguments}" for e in events if isinstance(e, ToolCallDelta)),
        [event.finish_reason for event in events if isinstance(event, ChoiceFinished)],
        (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.is_estimated),
        usage.cost_usd,
    )


def told(call: Call) -> tuple[Any, ...]:
    keys = {name: call.headers.get(name) for name in ("authorization", "x-api-key", "anthropic-version")}
    # One client says that it wants no stream, the other says nothing.
    body = {name: value for name, value in call.body.items() if (name, value) != ("stream", False)}
    return call.method, call.path, keys, body


def go_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: Deployment, __: Mapping[str, Any]) -> bool:
        return False

    monkeypatch.setattr(chat, "is_short", never)


def test_the_providers_of_the_short_way_are_all_looked_at() -> None:
    assert set(MODELS) == chat.PROVIDERS


@both
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("fields", list(FIELDS))
async def test_both_ways_say_and_hear_the_same(
    *,
    provider: Upstream,
    backend: LiteLLMBackend,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fields: str,
    stream: bool,
) -> None:
    provider.answer = says("Der Rhein 🌊")
    if fields == "schema" and name == "anthropic":
        provider.answer = says('{"a": 1}')
    wanted = dict(FIELDS[fields])

    short = await events_of(backend, request(MODELS[name], CHAT, stream=stream, **wanted))
    go_long(monkeypatch)
    long = await events_of(backend, request(MODELS[name], CHAT, stream=stream, **wanted))

    assert heard(short) == heard(long)
    assert told(provider.calls[0]) == told(provider.calls[1])


@both
@pytest.mark.parametrize("name", list(MODELS))
async def test_both_ways_hand_tools_over_and_back(
    *,
    provider: Upstream,
    backend: LiteLLMBackend,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    stream: bool,
) -> None:
    provider.answer = says("Moment", tool=True)
    prompt = ChatPrompt(messages=CHAT.messages, tools=TOOLS)

    short = await events_of(backend, request(MODELS[name], prompt, stream=stream))
    go_long(monkeypatch)
    long = await events_of(backend, request(MODELS[name], prompt, stream=stream))

    assert heard(short) == heard(long)
    assert json.loads(heard(short)[2].removeprefix("get_weather")) == {"city": "Köln"}
    assert told(provider.calls[0]) == told(provider.calls[1])


async def test_the_short_way_takes_no_thread_and_not_openais_sdk(
    provider: Upstream, backend: LiteLLMBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.answer = says("Der Rhein 🌊")
    loop = asyncio.get_running_loop()
    handed_over: list[object] = []
    run_in_executor = loop.run_in_executor

    def noted(executor: Any, work: Any, *args: Any) -> Any:
        handed_over.append(work)
        return run_in_executor(executor, work, *args)

    monkeypatch.setattr(loop, "run_in_executor", noted)

    await events_of(backend, request(MODELS["openai"], CHAT))

    assert not handed_over
    assert not any(name.startswith("x-stainless") for name in provider.calls[0].headers)
    assert os.environ[chat.LIGHT_CLIENT] == "False"


async def test_an_organisation_is_told_to_openai(provider: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORGANIZATION", "org-1")
    provider.answer = says("Der Rhein 🌊")
    async with a_backend() as backend:
        await events_of(backend, request(MODELS["openai"], CHAT))

    assert provider.calls[0].headers["openai-organization"] == "org-1"


async def test_the_light_client_is_left_alone_while_a_thread_may_look(
    provider: Upstream, backend: LiteLLMBackend
) -> None:
    provider.answer = says("Der Rhein 🌊")
    road = backend._road
    assert road is not None
    road.chat._in_threads = 1

    await events_of(backend, request(MODELS["openai"], CHAT))

    assert any(name.startswith("x-stainless") for name in provider.calls[0].headers)


@pytest.mark.parametrize(
    ("deployment", "arguments"),
    [
        ({"provider": "bedrock"}, {"messages": CHAT.messages}),
        ({"mode": "responses"}, {"messages": CHAT.messages}),
        ({"provider": "anthropic"}, {"messages": [PICTURE]}),
        ({}, {"messages": HISTORY.messages}),
        ({}, {"messages": CHAT.messages, "tools": TOOLS, "reasoning_effort": "low"}),
    ],
    ids=[
        "a cloud with tokens of its own",
        "the Responses API",
        "a picture for Anthropic",
        "tool calls so far",
        "reasoning and tools",
    ],
)
def test_what_the_short_way_might_get_wrong_goes_the_long_one(
    deployment: dict[str, str], arguments: dict[str, Any]
) -> None:
    fields = {"provider": "openai", "mode": "chat", **deployment}
    one = Deployment(model="m", supported=frozenset(), provider=fields["provider"], mode=fields["mode"])

    assert not chat.is_short(one, arguments)


@pytest.mark.parametrize("last", ['{"id": "gen-1", "choi', None], ids=["half a JSON", "no finish reason"])
async def test_openrouters_stream_ends_as_strictly_as_openais(
    provider: Upstream, backend: LiteLLMBackend, last: str | None
) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        chunks: list[object] = [openrouter_format.chunk({"role": "assistant", "content": "Hel"})]
        await openrouter_format.stream(wire, [*chunks, *([last] if last else [])])

    provider.answer = answer
    seen: list[Event] = []

    async def read() -> None:
        async for batch in backend.generate(request(MODELS["openrouter"], CHAT, stream=True)):
            seen.extend(batch)

    with pytest.raises(UpstreamError):
        await read()

    assert not any(isinstance(event, ChoiceFinished) for event in seen)
    assert text_of([event for event in seen if isinstance(event, TextDelta)]) in ("Hel", "")
