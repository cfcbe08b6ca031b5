"""A caller who leaves ends the provider's work at once: shown by the provider's own log."""

from __future__ import annotations

import asyncio
import time

import pytest

from backends.errors import BackendError, BackendFailed, Draining
from backends.litellm.backend import LiteLLMBackend
from backends.litellm.patience import Patience
from backends.types import ChatPrompt, GenerationRequest, TextPrompt
from tests.backends.contract import events_of, request, streaming
from tests.backends.litellm_backends import a_backend, needs_litellm
from tests.backends.litellm_calls import both
from tests.backends.provider_upstreams import anthropic_format
from tests.backends.provider_upstreams.openai_format import Model
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, silence
from tests.backends.serving import served

pytestmark = needs_litellm

CHAT = ChatPrompt(messages=[{"role": "user", "content": "Tell me a long story"}])
TEXT = TextPrompt(text="Once upon a time")
AT_ONCE_S = 1.0
MODELS = [
    pytest.param("gpt-4o", CHAT, id="openai"),
    pytest.param("claude-sonnet-4-5", CHAT, id="anthropic"),
    pytest.param("openrouter/meta-llama/llama-3-70b", CHAT, id="openrouter"),
    pytest.param("gpt-3.5-turbo-instruct", TEXT, id="text"),
]


async def endless(call: Call, wire: Wire) -> None:
    """A stream without an end, in the format that was asked for."""
    if "anthropic-version" in call.headers:
        text = anthropic_format.events(anthropic_format.text("word "))
        await wire.begin_stream()
        for event in text[:3]:
            await wire.event(event, name=event["type"])
        while True:
            await wire.event(text[3], name=text[3]["type"])
            await asyncio.sleep(0.01)
    await Model(length=None, itl_s=0.01, context_length=1 << 20)(call, wire)


async def left_at_once(provider: Upstream, number: int = 0) -> bool:
    call = await provider.wait_for_call(number)
    began = time.monotonic()
    await call.wait_until_ended()
    return call.client_left and time.monotonic() - began < AT_ONCE_S


def wanted(model: str, prompt: ChatPrompt | TextPrompt, *, stream: bool) -> GenerationRequest:
    return request(model, prompt, stream=stream, max_tokens=4000)


@pytest.mark.parametrize(("model", "prompt"), MODELS)
async def test_closing_a_stream_closes_the_connection(
    provider: Upstream, backend: LiteLLMBackend, model: str, prompt: ChatPrompt | TextPrompt
):
    provider.answer = endless

    async with streaming(backend, wanted(model, prompt, stream=True)):
        assert not provider.calls[0].ended.is_set()

    assert await left_at_once(provider)


@both
@pytest.mark.parametrize(("model", "prompt"), MODELS)
async def test_leaving_before_the_answer_begins_closes_the_connection(
    provider: Upstream, backend: LiteLLMBackend, model: str, prompt: ChatPrompt | TextPrompt, *, stream: bool
):
    reader = asyncio.create_task(events_of(backend, wanted(model, prompt, stream=stream)))
    await provider.wait_for_call()

    reader.cancel()

    assert await left_at_once(provider)
    with pytest.raises(asyncio.CancelledError):
        await reader


async def test_leaving_inside_a_whole_answers_body_closes_the_connection(
    provider: Upstream, backend: LiteLLMBackend
):
    begun = asyncio.Event()

    async def slow_body(_: Call, wire: Wire) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
        await wire.raw(head + b'{"id": "chatcmpl-1"')
        begun.set()
        await asyncio.Event().wait()

    provider.answer = slow_body
    reader = asyncio.create_task(events_of(backend, wanted("gpt-4o", CHAT, stream=False)))
    await begun.wait()
    await asyncio.sleep(0.02)

    reader.cancel()

    assert await left_at_once(provider)


@both
async def test_all_calls_of_a_request_end_with_it(
    provider: Upstream, backend: LiteLLMBackend, *, stream: bool
):
    if stream:
        provider.answer = endless
    one = request("claude-sonnet-4-5", CHAT, n=3, stream=stream, max_tokens=4000)
    reader = asyncio.create_task(events_of(backend, one))
    await provider.wait_for_call(2)

    reader.cancel()

    assert [await left_at_once(provider, number) for number in range(3)] == [True] * 3


async def test_one_failing_call_ends_the_others(provider: Upstream, backend: LiteLLMBackend):
    async def refuses(_: Call, wire: Wire) -> None:
        await provider.wait_for_call(2)
        await wire.json(500, anthropic_format.error("api_error", "No"))

    provider.answers = [silence, refuses, silence]

    with pytest.raises(BackendError):
        await events_of(backend, request("claude-sonnet-4-5", CHAT, n=3))

    assert await left_at_once(provider, 0)
    assert await left_at_once(provider, 2)


@both
async def test_leaving_behind_the_runners_wire_closes_the_connection(
    provider: Upstream, backend: LiteLLMBackend, *, stream: bool
):
    if stream:
        provider.answer = endless
    async with served(backend) as client:
        reader = asyncio.create_task(events_of(client, wanted("gpt-4o", CHAT, stream=stream)))
        await provider.wait_for_call()

        reader.cancel()

        assert await left_at_once(provider)


async def test_an_abort_closes_the_connection_of_a_whole_answer(provider: Upstream, backend: LiteLLMBackend):
    one = wanted("gpt-4o", CHAT, stream=False)
    reader = asyncio.create_task(events_of(backend, one))
    await provider.wait_for_call()

    await backend.abort(one.request_id)

    assert await left_at_once(provider)
    with pytest.raises(BackendFailed, match="aborted"):
        await reader


async def test_no_retry_is_made_for_who_left(provider: Upstream, monkeypatch: pytest.MonkeyPatch):
    async def unavailable(_: Call, wire: Wire) -> None:
        await wire.json(503, {"error": {"message": "Later"}}, retry_after="1")

    provider.answer = unavailable
    async with a_backend(patience=Patience(max_retries=5)) as backend:
        reader = asyncio.create_task(events_of(backend, wanted("gpt-4o", CHAT, stream=False)))
        await (await provider.wait_for_call()).wait_until_ended()
        await asyncio.sleep(0.02)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    assert len(provider.calls) == 1


async def test_a_hundred_who_left_leave_no_connection_and_no_running_request(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = endless
    for number in range(100):
        reader = asyncio.create_task(events_of(backend, wanted("gpt-4o", CHAT, stream=number % 2 == 0)))
        await provider.wait_for_call(number)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    for call in provider.calls:
        await call.wait_until_ended()

    provider.answer = Model(length=3)
    await events_of(backend, wanted("gpt-4o", CHAT, stream=True))
    assert provider.open_connections <= 1
    assert await backend.drain(0.5)


async def test_a_draining_backend_lets_what_runs_finish_and_takes_nothing_new(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = Model(length=30, itl_s=0.01)
    running = asyncio.create_task(events_of(backend, wanted("gpt-4o", CHAT, stream=True)))
    await provider.wait_for_call()

    drained = asyncio.create_task(backend.drain(5.0))
    await asyncio.sleep(0)

    with pytest.raises(Draining):
        await events_of(backend, wanted("gpt-4o", CHAT, stream=False))
    assert await drained
    assert running.done()


async def test_a_drain_says_when_something_outlasts_it(provider: Upstream, backend: LiteLLMBackend):
    running = asyncio.create_task(events_of(backend, wanted("gpt-4o", CHAT, stream=False)))
    await provider.wait_for_call()

    assert not await backend.drain(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_slow_reader_holds_the_provider_up(provider: Upstream, backend: LiteLLMBackend):
    written = 0

    async def flood(_: Call, wire: Wire) -> None:
        nonlocal written
        from tests.backends.provider_upstreams.openai_format import chunk

        await wire.begin_stream()
        while True:
            await wire.event(chunk({"content": "x" * 2000}))
            written += 1

    provider.answer = flood

    async with streaming(backend, wanted("gpt-4o", CHAT, stream=True)):
        last = -1
        async with asyncio.timeout(20):
            while written != last:
                last = written
                await asyncio.sleep(0.3)

    assert 0 < written < 20_000
