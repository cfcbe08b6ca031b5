"""What is written to each provider and read from it, in its own format, whole and streamed alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.litellm.backend import LiteLLMBackend
from backends.types import (
    ChatPrompt,
    Event,
    GenerationRequest,
    ReasoningDelta,
    SamplingParams,
    TextDelta,
    TextPrompt,
    ToolCallDelta,
)
from tests.backends.contract import endings_of, events_of, finished_of, request, text_of
from tests.backends.litellm_backends import needs_litellm
from tests.backends.litellm_calls import both
from tests.backends.provider_upstreams import anthropic_format, openai_format, openrouter_format
from tests.backends.provider_upstreams.server import Answer, Call, Upstream, Wire

pytestmark = needs_litellm

CLAUDE, GPT, ROUTED = "claude-sonnet-4-5", "gpt-4o", "openrouter/meta-llama/llama-3-70b-instruct"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
HISTORY = ChatPrompt(
    messages=[
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Weather in Paris?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "user", "content": "And in Köln?"},
    ],
    tools=TOOLS,
)
CHAT = ChatPrompt(messages=[{"role": "user", "content": "hi"}])


def reasoning_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def calls_of(events: list[Event]) -> list[tuple[str | None, str | None, str]]:
    calls: dict[int, list[ToolCallDelta]] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            calls.setdefault(event.call_index, []).append(event)
    return [(of[0].id, of[0].name, "".join(one.arguments for one in of)) for of in calls.values()]


@both
async def test_anthropics_thinking_text_and_tool_call(
    provider: Upstream, backend: LiteLLMBackend, *, stream: bool
):
    provider.answer = anthropic_format.Says(
        anthropic_format.thinking("Let me see what they want"),
        anthropic_format.text("Ich schaue nach: 川は 🌊"),
        anthropic_format.tool_use("get_weather", {"city": "Köln"}),
        stop_reason="tool_use",
        counts=anthropic_format.usage(1200, 60, cache_read=1000),
    )

    events = await events_of(backend, request(CLAUDE, HISTORY, stream=stream))

    usage = finished_of(events).usage
    assert reasoning_of(events) == "Let me see what they want"
    assert text_of(events) == "Ich schaue nach: 川は 🌊"
    ((_, name, arguments),) = calls_of(events)
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Köln"})
    assert endings_of(events)[0].finish_reason == "tool_calls"
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (2200, 1000, 60)
    assert not usage.is_estimated
    assert usage.cost_usd is not None


async def test_a_conversation_with_tools_is_written_as_anthropic_reads_it(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = anthropic_format.Says(anthropic_format.text("ok"))

    await events_of(backend, request(CLAUDE, HISTORY))

    body = provider.calls[0].body
    assert body["system"][0]["text"] == "You are terse."
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"][-1]["type"] == "tool_use"
    assert body["messages"][2]["content"][0]["type"] == "tool_result"
    assert body["tools"][0]["name"] == "get_weather"
    assert provider.calls[0].headers["anthropic-version"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls")],
)
@both
async def test_anthropics_stop_reasons(
    provider: Upstream, backend: LiteLLMBackend, *, stream: bool, said: str, reason: str
):
    blocks = [anthropic_format.text("Hi")]
    if said == "tool_use":
        blocks = [anthropic_format.tool_use("f", {})]
    provider.answer = anthropic_format.Says(*blocks, stop_reason=said)

    events = await events_of(backend, request(CLAUDE, HISTORY, stream=stream))

    assert endings_of(events)[0].finish_reason == reason


@both
async def test_a_call_without_arguments_is_an_empty_object_for_anthropic_too(
    provider: Upstream, backend: LiteLLMBackend, *, stream: bool
):
    provider.answer = anthropic_format.Says(anthropic_format.tool_use("now", {}), stop_reason="tool_use")

    events = await events_of(backend, request(CLAUDE, HISTORY, stream=stream))

    assert [(name, arguments) for _, name, arguments in calls_of(events)] == [("now", "{}")]


def routed(thought: str | None, text: str, **counts: Any) -> Answer:
    async def answer(call: Call, wire: Wire) -> None:
        usage = openrouter_format.usage(9, 3, **counts)
        if not call.body.get("stream"):
            await wire.json(200, openrouter_format.completion(text, reasoning=thought, counts=usage))
            return
        thoughts = [openrouter_format.chunk(openrouter_format.thought(one)) for one in thought or ""]
        texts = [openrouter_format.chunk({"role": "assistant", "content": one}) for one in text]
        end = openrouter_format.chunk({"role": "assistant", "content": ""}, finish_reason="stop")
        last = openrouter_format.chunk({"role": "assistant", "content": ""}, counts=usage)
        await openrouter_format.stream(wire, [*thoughts, *texts, end, last])

    return answer


@both
async def test_openrouters_reasoning_and_its_own_price(
    provider: Upstream, backend: LiteLLMBackend, *, stream: bool
):
    provider.answer = routed("Hmm", "Hallo 🌊", cost=0.0123, reasoning=2)

    events = await events_of(backend, request(ROUTED, CHAT, stream=stream))

    usage = finished_of(events).usage
    assert (reasoning_of(events), text_of(events)) == ("Hmm", "Hallo 🌊")
    assert usage.cost_usd == pytest.approx(0.0123)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (9, 3, 2)
    assert not usage.is_estimated


@both
async def test_openais_tool_calls(provider: Upstream, backend: LiteLLMBackend, *, stream: bool):
    pieces = [
        {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
        {"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    calls = [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]

    async def answer(call: Call, wire: Wire) -> None:
        if not call.body.get("stream"):
            document = openai_format.completion(None, finish_reason="tool_calls", tool_calls=calls)
            await wire.json(200, document)
            return
        chunks = [openai_format.chunk({"tool_calls": [piece]}) for piece in pieces]
        end = openai_format.chunk({}, finish_reason="tool_calls")
        await openai_format.stream(
            wire, [openai_format.chunk({"role": "assistant", "content": None}), *chunks, end]
        )

    provider.answer = answer

    events = await events_of(backend, request(GPT, HISTORY, stream=stream))

    assert calls_of(events) == [("call_a", "f", '{"a": 1}'), ("call_b", "g", "{}")]
    assert text_of(events) == ""
    assert endings_of(events)[0].finish_reason == "tool_calls"


async def test_openai_gets_what_was_asked_for_and_nothing_else(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_format.Model(length=3)
    wanted = GenerationRequest(
        request_id="r",
        model=GPT,
        prompts=(ChatPrompt(messages=HISTORY.messages, tools=TOOLS),),
        sampling=SamplingParams(
            temperature=0.2,
            max_tokens=50,
            stop=("END",),
            seed=7,
            explicit=frozenset({"temperature", "max_tokens", "stop", "seed"}),
        ),
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        response_format={"type": "json_object"},
        stream=True,
    )

    await events_of(backend, wanted)

    body = provider.calls[0].body
    assert body.pop("messages") == HISTORY.messages
    assert body == {
        "model": "gpt-4o",
        "temperature": 0.2,
        "max_tokens": 50,
        "stop": ["END"],
        "seed": 7,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "response_format": {"type": "json_object"},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_schema_reaches_anthropic_and_its_answer_is_text(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = anthropic_format.Says(anthropic_format.text('{"a": 1}'))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    wanted = GenerationRequest(
        request_id="r", model=CLAUDE, prompts=(CHAT,), sampling=SamplingParams(), response_format=form
    )

    events = await events_of(backend, wanted)

    assert "integer" in str(provider.calls[0].body)
    assert text_of(events) == '{"a": 1}'


async def test_a_model_that_reasons_gets_no_default_temperature(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_format.Model(length=3)
    wanted = GenerationRequest(
        request_id="r", model="gpt-5", prompts=(CHAT,), sampling=SamplingParams(max_tokens=20)
    )

    await events_of(backend, wanted)

    assert "temperature" not in provider.calls[-1].body
    assert provider.calls[-1].body["max_completion_tokens"] == 20


async def test_a_text_completion_without_a_limit_gets_the_room_that_is_left(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_format.Model(length=3)

    await events_of(backend, request("gpt-3.5-turbo-instruct", TextPrompt(text="Once upon"), max_tokens=None))

    assert provider.calls[0].path == "/v1/completions"
    assert 8000 < provider.calls[0].body["max_tokens"] < 8192


@both
async def test_stops_that_are_cut_here_end_the_providers_work(
    provider: Upstream, backend: LiteLLMBackend, *, stream: bool
):
    provider.answer = openai_format.Model(length=None, itl_s=0.005, context_length=1 << 20)
    stops = ("the sea", "never 1", "never 2", "never 3", "never 4")

    events = await events_of(backend, request(GPT, CHAT, stop=stops, stream=stream, max_tokens=None))

    assert text_of(events) == "A river is water that flows to "
    assert (endings_of(events)[0].finish_reason, endings_of(events)[0].stop_reason) == ("stop", "the sea")
    assert finished_of(events).usage.is_estimated
    await provider.calls[0].wait_until_ended()
    assert provider.calls[0].client_left


async def test_several_choices_of_a_stream_have_their_own_texts_and_ends(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_format.Model(length=5)

    events = await events_of(backend, request(GPT, CHAT, n=3, stream=True))

    assert {text_of(events, index) for index in range(3)} == {"A river is water that"}
    assert sorted(endings_of(events)) == [0, 1, 2]
    assert len(provider.calls) == 3


async def test_choices_that_the_provider_did_not_give_are_asked_for_and_n_is_not_sent_again(
    provider: Upstream, backend: LiteLLMBackend
):
    async def one_only(_: Call, wire: Wire) -> None:
        await wire.json(200, openai_format.completion("Hi", counts=openai_format.usage(9, 1)))

    provider.answer = one_only

    for expected in (3, 6):
        events = await events_of(backend, request("openai/a-copy", CHAT, n=3))
        assert [text_of(events, index) for index in range(3)] == ["Hi"] * 3
        assert sorted(endings_of(events)) == [0, 1, 2]
        usage = finished_of(events).usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (9, 3)
        assert len(provider.calls) == expected

    assert ["n" in body for body in provider.bodies] == [True, *[False] * 5]


async def test_a_whole_answer_comes_in_one_batch_and_says_how_long_its_prompt_was(
    provider: Upstream, backend: LiteLLMBackend
):
    async def answer(_: Call, wire: Wire) -> None:
        await wire.json(200, openai_format.completion("Hi", counts=openai_format.usage(77, 1)))

    provider.answer = answer

    batches = [batch async for batch in backend.generate(request(GPT, CHAT))]

    assert len(batches) == 1
    assert batches[0][0].prompt_tokens == 77  # type: ignore[union-attr]
    assert isinstance(batches[0][1], TextDelta)
