"""The fake meets the contract, directly and as a runner behind the wire; and what is particular about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import Backend
from backends.clock import MonotonicClock
from backends.errors import BackendFailed, UnsupportedParameter
from backends.fake import FakeLoader, FakeModel, FakeScript, tokens
from backends.pool import PooledBackend
from backends.types import ChatPrompt, EventBatch, GenerationRequest, TextDelta, TextPrompt
from models.errors import UnusableModel
from tests.backends.clocks import FakeClock
from tests.backends.contract import BackendContract, endless, events_of, request, text_of
from tests.backends.serving import served

SCRIPT = FakeScript(context_length=2000, itl_s=0.001)


def a_pool(script: FakeScript | None = None) -> PooledBackend:
    return PooledBackend(FakeLoader({"fake-echo": script or SCRIPT}))


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
