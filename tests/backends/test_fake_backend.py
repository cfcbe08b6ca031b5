"""The fake meets the contract, directly and as a runner behind the wire; and what is particular about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import Backend
from backends.clock import MonotonicClock
from backends.errors import BackendFailed, InvalidGrammar, UnsupportedParameter
from backends.fake import FakeLoader, FakeModel, FakeScript, tokens
from backends.fake.instances import instance
from backends.pool import PooledBackend
from backends.registry import FEATURES
from backends.types import (
    ChatPrompt,
    ChoiceFinished,
    EventBatch,
    Finished,
    GenerationRequest,
    ReasoningDelta,
    Started,
    TextDelta,
    TextPrompt,
)
from models.errors import UnusableModel
from tests.backends.clocks import FakeClock
from tests.backends.contract import (
    TOOLS,
    BackendContract,
    calls_of,
    endings_of,
    endless,
    events_of,
    finished_of,
    request,
    text_of,
)
from tests.backends.serving import served

SCRIPT = FakeScript(context_length=2000, itl_s=0.001)


def a_pool(script: FakeScript | None = None) -> PooledBackend:
    backend = PooledBackend(FakeLoader({"fake-echo": script or SCRIPT}))
    backend.features = FEATURES["fake"]
    return backend


@pytest.fixture
def model() -> str:
    return "fake-echo"


class TestFakeBackend(BackendContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        backend = a_pool()
        await backend.start()
        yield backend
        await backend.aclose()


class TestFakeBackendBehindTheRunnerWire(BackendContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with served(a_pool()) as client:
            yield client


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    backend = a_pool()
    await backend.start()
    yield backend
    await backend.aclose()


async def test_the_last_user_message_comes_back_word_by_word(backend: Backend):
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "say this back"},
    ]
    events = await events_of(backend, request("fake-echo", ChatPrompt(messages=messages), stream=True))

    assert [e.text for e in events if isinstance(e, TextDelta)] == ["say", " this", " back"]


async def test_a_script_may_say_something_else_and_for_longer():
    backend = a_pool(FakeScript(reply="one two", num_tokens=5))
    events = await events_of(backend, request("fake-echo", TextPrompt(text="x")))
    await backend.aclose()

    assert text_of(events) == "one two one two one"


@pytest.mark.parametrize("fields", [{"grammar": 'root ::= "a"'}, {"logit_bias": {1: 5.0}}])
async def test_what_needs_a_distribution_is_refused(backend: Backend, fields: dict[str, object]):
    with pytest.raises(UnsupportedParameter) as refused:
        await events_of(backend, request("fake-echo", **fields))

    assert refused.value.param == next(iter(fields))


THINK = ChatPrompt(
    messages=[{"role": "user", "content": "look at this"}],
    tools=TOOLS,
    template_kwargs={"enable_thinking": True},
)


async def test_it_thinks_before_it_speaks_and_counts_what_it_thought(backend: Backend):
    events = await events_of(backend, request("fake-echo", THINK, stream=True))
    kinds = [type(e) for e in events]
    thoughts = kinds.count(ReasoningDelta)

    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == "They said: look at this"
    assert kinds == [Started, *[ReasoningDelta] * thoughts, *[TextDelta] * 3, ChoiceFinished, Finished]
    assert finished_of(events).usage.reasoning_tokens == thoughts
    assert finished_of(events).usage.completion_tokens == thoughts + 3


async def test_thinking_that_reaches_the_limit_ends_with_length(backend: Backend):
    events = await events_of(backend, request("fake-echo", THINK, max_tokens=2))

    assert [type(e) for e in events] == [Started, ReasoningDelta, ReasoningDelta, ChoiceFinished, Finished]
    assert endings_of(events)[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("effort", "kwargs", "thinks"),
    [
        (None, {}, False),
        ("none", {}, False),
        ("low", {}, True),
        ("low", {"enable_thinking": False}, False),
        ("none", {"enable_thinking": True}, True),
    ],
)
async def test_an_effort_makes_it_think_unless_the_template_is_told_otherwise(
    backend: Backend, effort: str | None, kwargs: dict[str, object], thinks: bool
):
    chat = ChatPrompt(messages=THINK.messages, template_kwargs=kwargs)
    events = await events_of(backend, request("fake-echo", chat, reasoning_effort=effort))

    assert any(isinstance(e, ReasoningDelta) for e in events) == thinks


async def test_a_tool_the_user_names_is_called_and_no_other(backend: Backend):
    named = ChatPrompt(messages=[{"role": "user", "content": "What time is it?"}], tools=TOOLS)
    answered = ChatPrompt(messages=[*named.messages, {"role": "tool", "content": "noon"}], tools=TOOLS)
    unnamed = ChatPrompt(messages=[{"role": "user", "content": "Hi"}], tools=TOOLS)
    calls = [
        [call[0].name for call in calls_of(await events_of(backend, request("fake-echo", prompt)))]
        for prompt in (named, answered, unnamed)
    ]

    assert calls == [["time"], [], []]


async def test_a_choice_of_none_calls_no_tool(backend: Backend):
    named = ChatPrompt(messages=[{"role": "user", "content": "What time is it?"}], tools=TOOLS)
    events = await events_of(backend, request("fake-echo", named, tool_choice="none"))

    assert text_of(events) == "What time is it?"


async def test_parallel_calls_take_all_tools_in_order_with_ids_of_their_own(backend: Backend):
    chat = ChatPrompt(messages=THINK.messages, tools=TOOLS)
    events = await events_of(
        backend, request("fake-echo", chat, tool_choice="required", parallel_tool_calls=True, max_tokens=50)
    )
    firsts = [call[0] for call in calls_of(events)]

    assert [first.name for first in firsts] == ["weather", "time"]
    assert len({first.id for first in firsts}) == 2


async def test_a_call_that_reaches_the_limit_ends_with_length(backend: Backend):
    chat = ChatPrompt(messages=THINK.messages, tools=TOOLS)
    events = await events_of(backend, request("fake-echo", chat, tool_choice="required", max_tokens=2))

    assert endings_of(events)[0].finish_reason == "length"


async def test_it_says_the_first_of_its_choices(backend: Backend):
    events = await events_of(backend, request("fake-echo", structured_outputs={"choice": ["red", "blue"]}))

    assert text_of(events) == "red"


@pytest.mark.parametrize("name", ["regex", "grammar", "structural_tag"])
async def test_a_constraint_it_cannot_meet_is_refused_by_name(backend: Backend, name: str):
    with pytest.raises(UnsupportedParameter) as refused:
        await events_of(backend, request("fake-echo", structured_outputs={name: "a"}))

    assert refused.value.param == f"structured_outputs.{name}"


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}, {"a": "fake"}),
        ({"properties": {"a": {"type": "integer"}, "b": {"const": 5}}, "required": ["b"]}, {"b": 5}),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True, True]),
        ({"type": ["string", "null"], "minLength": 6}, "fakefa"),
        ({"type": "string", "maxLength": 2}, "fa"),
        ({"type": "string", "format": "date"}, "2024-01-01"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "number", "exclusiveMaximum": -1}, -2),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"enum": ["x", "y"]}}}, "x"),
    ],
)
def test_an_instance_meets_its_schema(schema: dict[str, object], made: object):
    assert instance(schema) == made


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"type": "string", "pattern": "a+"},
        {"type": "strong"},
        {"type": "object", "properties": [], "required": ["a"]},
        False,
    ],
)
def test_a_schema_without_a_known_instance_is_refused(schema: object):
    with pytest.raises(InvalidGrammar):
        instance(schema)


async def started(model: FakeModel, wanted: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
    generator = model.generate(wanted)
    await anext(generator)
    return generator


async def test_requests_beyond_its_slots_wait_in_order():
    model = FakeModel("m", FakeScript(num_slots=1, context_length=10_000), MonotonicClock())
    first = await started(model, endless("m"))
    order: list[str] = []

    async def use(name: str) -> None:
        async for _ in model.generate(request("m")):
            pass
        order.append(name)

    tasks = [asyncio.create_task(use(name)) for name in ("second", "third")]
    await asyncio.sleep(0)
    counts = (model.running, model.waiting)
    await first.aclose()
    await asyncio.gather(*tasks)

    assert counts == (1, 2)
    assert order == ["second", "third"]
    assert (model.running, model.waiting) == (0, 0)


async def test_a_slot_given_to_a_request_that_is_aborted_at_that_moment_is_not_lost():
    model = FakeModel("m", FakeScript(num_slots=1, context_length=10_000), MonotonicClock())
    first = await started(model, endless("m"))
    second = endless("m")
    task = asyncio.create_task(started(model, second))
    await asyncio.sleep(0)
    await first.aclose()
    await model.abort(second.request_id)

    with pytest.raises(BackendFailed):
        await task
    assert (model.running, model.waiting) == (0, 0)


async def test_a_script_decides_when_tokens_come_and_a_late_reader_gets_all_that_are_due():
    clock = FakeClock()
    model = FakeModel("m", FakeScript(ttft_s=5.0, itl_s=1.0, reply="a b c d e f"), clock)
    generator = model.generate(request("m", stream=True))
    first = asyncio.ensure_future(anext(generator))
    await clock.advance(4.9)
    early = first.done()
    await clock.advance(0.1)
    texts = [text_of(await first)]
    await clock.advance(3.0)
    texts.append(text_of(await anext(generator)))
    await generator.aclose()

    assert not early
    assert texts == ["a", " b c d"]


async def test_a_script_may_refuse_to_load():
    backend = a_pool(FakeScript(load_error="The file is truncated"))
    with pytest.raises(UnusableModel, match="truncated"):
        await events_of(backend, request("fake-echo"))
    await backend.aclose()


@given(st.text())
def test_tokens_put_together_are_the_text(text: str):
    assert "".join(tokens.split(text)) == text
