"""A model that thinks, on the real vLLM: its thoughts are told apart, streamed and not, and constraints are about the
answer behind them. `thinking_weights` makes it of the shipped one; its second sentence is its answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.base import Backend
from backends.errors import InvalidParameter, UnsupportedParameter
from backends.pool import PooledBackend
from backends.registry import FEATURES
from backends.types import ChatPrompt, Event, ReasoningDelta, TextDelta, ToolCallDelta
from tests.backends.contract import (
    CHAT,
    CITY,
    TOOLS,
    calls_of,
    endings_of,
    events_of,
    finished_of,
    request,
    text_of,
)
from tests.openai_compat.wire import chat, close_apps, make_app
from tests.vllm_engine.shared_engine import MODEL, Served, SharedLoader, running
from tests.vllm_engine.thinking_weights import CLOSE, make

MARGIN_TOKENS = 6
"""Of an answer that is shorter than its first full stop, which the model writes as `</think>`."""
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": CITY, "strict": True}}
NAMED = {"type": "function", "function": {"name": "time"}}


@pytest.fixture(scope="module")
def thinking(vllm_python: str, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("t")
    make(weights, folder / "w")
    with running(vllm_python, folder / "w", folder, thinks_as="qwen3") as served:
        yield served


@pytest.fixture
async def backend(thinking: Served) -> AsyncIterator[Backend]:
    pool = PooledBackend(SharedLoader(thinking))
    pool.features = FEATURES["vllm"]
    yield pool
    await pool.aclose()


def thought_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


async def asked(backend: Backend, prompt: ChatPrompt = CHAT, **fields: Any) -> list[Event]:
    return await events_of(backend, request(MODEL, prompt, **{"max_tokens": 90, **fields}), patience_s=200)


async def tokens_of_thought(backend: Backend) -> int:
    """With its end mark."""
    events = await asked(backend, stream=True)
    assert text_of(events), "the thought has no end within the answer"
    return sum(event.num_tokens for event in events if isinstance(event, ReasoningDelta)) + 1


async def test_a_thought_comes_before_the_answer_and_without_its_marks(backend: Backend) -> None:
    limit = await tokens_of_thought(backend) + MARGIN_TOKENS
    events = await asked(backend, stream=True, max_tokens=limit)
    deltas = [event for event in events if isinstance(event, ReasoningDelta | TextDelta)]
    kinds = [type(delta) for delta in deltas]

    assert len(deltas) > MARGIN_TOKENS
    assert kinds == sorted(kinds, key=lambda kind: kind is TextDelta)
    assert not any(mark in delta.text for delta in deltas for mark in ("<", ">", "think>"))


async def test_the_deltas_together_are_the_whole_answer(backend: Backend) -> None:
    limit = await tokens_of_thought(backend) + MARGIN_TOKENS
    streamed, whole = [await asked(backend, stream=stream, max_tokens=limit) for stream in (True, False)]

    assert thought_of(streamed) == thought_of(whole) != ""
    assert text_of(streamed) == text_of(whole) != ""
    assert finished_of(streamed).usage == finished_of(whole).usage


@pytest.mark.parametrize("stream", [True, False])
async def test_the_tokens_of_the_thought_are_counted(backend: Backend, stream: bool) -> None:
    thought = await tokens_of_thought(backend)
    usage = finished_of(await asked(backend, stream=stream, max_tokens=thought + MARGIN_TOKENS)).usage

    assert usage.completion_tokens == thought + MARGIN_TOKENS
    assert thought - 2 <= usage.reasoning_tokens <= thought


@pytest.mark.parametrize("stream", [True, False])
async def test_a_thought_that_is_cut_off_ends_with_length_and_no_answer(
    backend: Backend, stream: bool
) -> None:
    events = await asked(backend, stream=stream, max_tokens=5)

    assert thought_of(events)
    assert text_of(events) == ""
    assert endings_of(events)[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_model_that_is_told_not_to_think_answers_at_once(backend: Backend, stream: bool) -> None:
    prompt = ChatPrompt(messages=CHAT.messages, template_kwargs={"enable_thinking": False})
    events = await asked(backend, prompt, stream=stream, max_tokens=5)

    assert thought_of(events) == ""
    assert text_of(events)
    assert finished_of(events).usage.reasoning_tokens == 0


@pytest.mark.parametrize(("effort", "thinks"), [("low", True), ("none", False)])
async def test_an_effort_says_whether_it_thinks(backend: Backend, effort: str, thinks: bool) -> None:
    events = await asked(backend, reasoning_effort=effort, max_tokens=5)

    assert bool(thought_of(events)) is thinks


async def test_an_effort_that_vllm_does_not_know_is_refused(backend: Backend) -> None:
    with pytest.raises((InvalidParameter, UnsupportedParameter), match="reasoning_effort"):
        await asked(backend, reasoning_effort="a bit")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"response_format": FORM}, {"city": "Oslo"}),
        ({"structured_outputs": {"json": CITY}}, {"city": "Oslo"}),
        ({"structured_outputs": {"choice": ["true"]}}, True),
        ({"grammar": 'root ::= "true"'}, True),
    ],
    ids=str,
)
async def test_a_constraint_holds_the_answer_and_leaves_the_thought_free(
    backend: Backend, fields: dict[str, Any], answer: Any, stream: bool
) -> None:
    events = await asked(backend, stream=stream, **fields)

    assert len(thought_of(events)) > 10
    assert CLOSE not in thought_of(events)
    assert json.loads(text_of(events)) == answer
    assert endings_of(events)[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
async def test_a_call_that_must_come_comes_behind_the_thought(
    backend: Backend, choice: str | dict[str, Any], stream: bool
) -> None:
    prompt = ChatPrompt(messages=CHAT.messages, tools=TOOLS)
    events = await asked(
        backend, prompt, tool_choice=choice, parallel_tool_calls=False, stream=stream, max_tokens=150
    )
    ((first, *others),) = calls_of(events)
    deltas = [type(event) for event in events if isinstance(event, ReasoningDelta | ToolCallDelta)]

    assert thought_of(events)
    assert deltas == sorted(deltas, key=lambda kind: kind is ToolCallDelta)
    assert json.loads("".join(delta.arguments for delta in (first, *others))) == {"city": "Oslo"}
    assert text_of(events).strip() == ""
    assert endings_of(events)[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("setting", "fields", "thinks"),
    [
        ({}, {}, False),
        ({}, {"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({}, {"reasoning_effort": "low"}, True),
        ({}, {"reasoning_effort": "none"}, False),
        ({"vllm_disable_thinking": False}, {}, True),
        (
            {"vllm_disable_thinking": False},
            {"chat_template_kwargs": {"enable_thinking": False}},
            False,
        ),
    ],
    ids=str,
)
async def test_through_the_service_it_thinks_where_the_caller_or_the_setting_says_so(
    backend: Backend, thinking: Served, setting: dict[str, bool], fields: dict[str, Any], thinks: bool
) -> None:
    app = make_app(
        backends={"vllm": backend},
        cards=[thinking.catalogue.resolve(MODEL)],
        default_backend="vllm",
        **setting,
    )
    try:
        reply = await chat(app, model=MODEL, max_tokens=5, temperature=0, **fields)
    finally:
        close_apps()

    message = reply.json["choices"][0]["message"]
    assert bool(message.get("reasoning_content")) is thinks
    assert bool(message["content"]) is not thinks
