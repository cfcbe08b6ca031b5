"""The fake meets the contract, directly and as a runner behind the wire; and what is particular about it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.base import Backend
from backends.errors import UnsupportedParameter
from backends.fake import FakeLoader, FakeScript
from backends.pool import PooledBackend
from backends.types import ChatPrompt, TextDelta, TextPrompt
from tests.backends.contract import BackendContract, events_of, request, text_of
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

    assert text_of(events) == "one two two two two" or text_of(events) == "one twoone twoone"


@pytest.mark.parametrize("fields", [{"grammar": 'root ::= "a"'}, {"logit_bias": {1: 5.0}}])
async def test_what_needs_a_distribution_is_refused(backend: Backend, fields: dict[str, object]):
    with pytest.raises(UnsupportedParameter) as refused:
        await events_of(backend, request("fake-echo", **fields))

    assert refused.value.param == next(iter(fields))
