"""Streams that begin well: what was passed on stays, and no end is made up."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    UpstreamError,
    UpstreamRateLimited,
)
from backends.litellm import measure
from backends.litellm.backend import LiteLLMBackend
from backends.litellm.patience import Patience
from tests.backends.contract import events_of, finished_of, request, text_of
from tests.backends.litellm_backends import a_backend, needs_litellm
from tests.backends.litellm_calls import (
    CHAT,
    MODELS,
    broken_stream,
    each,
    openai_stream,
    refusal,
)
from tests.backends.provider_upstreams import anthropic_format, openai_format, openrouter_format
from tests.backends.provider_upstreams.openai_format import chunk
from tests.backends.provider_upstreams.server import Call, Upstream, Wire

pytestmark = needs_litellm


async def test_an_error_inside_a_stream_ends_it_after_what_came(provider: Upstream, backend: LiteLLMBackend):
    error = {"error": {"message": "The server had an error", "type": "server_error", "code": None}}
    provider.answer = openai_stream(chunk({"role": "assistant", "content": "Hel"}), error)

    seen, raised = await broken_stream(backend, MODELS["openai"])

    assert text_of(seen) == "Hel"
    assert type(raised) is UpstreamError


async def test_an_error_as_the_first_event_of_a_stream_keeps_its_kind(
    provider: Upstream, backend: LiteLLMBackend
):
    error = {"error": {"message": "Slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    provider.answer = openai_stream(error)

    assert isinstance(await refusal(backend, stream=True), UpstreamRateLimited)


async def test_openrouters_error_chunk_ends_the_stream_with_its_code(
    provider: Upstream, backend: LiteLLMBackend
):
    async def answer(_: Call, wire: Wire) -> None:
        await openrouter_format.stream(
            wire,
            [
                openrouter_format.chunk({"role": "assistant", "content": "Hel"}),
                openrouter_format.error_chunk(503, "Provider disconnected"),
            ],
        )

    provider.answer = answer

    seen, raised = await broken_stream(backend, MODELS["openrouter"])

    assert text_of(seen) == "Hel"
    assert isinstance(raised, UpstreamError | BackendUnavailable)


async def test_anthropics_error_event_ends_the_stream_with_its_kind(
    provider: Upstream, backend: LiteLLMBackend
):
    async def answer(_: Call, wire: Wire) -> None:
        begun = anthropic_format.events(anthropic_format.text("Hello"))[:4]
        failure = anthropic_format.error("overloaded_error", "Overloaded")
        await anthropic_format.stream(wire, [*begun, failure])

    provider.answer = answer

    seen, raised = await broken_stream(backend, MODELS["anthropic"])

    assert text_of(seen) == "Hello"
    assert isinstance(raised, BackendUnavailable)


async def test_a_connection_that_breaks_inside_a_stream_is_no_end(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_stream(chunk({"role": "assistant", "content": "Hel"}), end=False)

    seen, raised = await broken_stream(backend, MODELS["openai"])

    assert text_of(seen) == "Hel"
    assert type(raised) is UpstreamError


async def test_anthropics_stream_that_stops_early_is_no_end(provider: Upstream, backend: LiteLLMBackend):
    async def answer(_: Call, wire: Wire) -> None:
        await anthropic_format.stream(wire, anthropic_format.events(anthropic_format.text("Hello"))[:4])

    provider.answer = answer

    seen, raised = await broken_stream(backend, MODELS["anthropic"])

    assert text_of(seen) == "Hello"
    assert type(raised) is UpstreamError


async def test_a_stream_without_a_finish_reason_is_no_end(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(chunk({"role": "assistant", "content": "Hel"}))

    assert type((await broken_stream(backend, MODELS["openai"]))[1]) is UpstreamError


async def test_half_a_json_inside_a_stream_ends_it(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "Hel"}), '{"id": "chatcmpl-1", "choi', "[DONE]"
    )

    assert type((await broken_stream(backend, MODELS["openai"]))[1]) is UpstreamError


async def test_a_model_that_repeats_itself_is_heard_out(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(
        *[chunk({"content": "again "}) for _ in range(250)], chunk({}, finish_reason="stop")
    )

    events = await events_of(backend, request(MODELS["openai"], CHAT, stream=True))

    assert text_of(events) == "again " * 250


async def test_a_stream_of_chunks_without_choices_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_stream(chunk(None), chunk(None))

    assert type((await broken_stream(backend, MODELS["openai"]))[1]) is UpstreamError


async def test_silence_after_half_a_stream_runs_into_the_idle_deadline(
    provider: Upstream, monkeypatch: pytest.MonkeyPatch
):
    async def answer(_: Call, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.event(chunk({"role": "assistant", "content": "Hel"}))
        await asyncio.Event().wait()

    provider.answer = answer
    async with a_backend(patience=Patience(idle_timeout_s=0.2, max_retries=0)) as backend:
        seen, raised = await broken_stream(backend, MODELS["openai"])

    assert text_of(seen) == "Hel"
    assert isinstance(raised, BackendTimeout)
    assert "sent nothing for 0.2 s" in raised.message
    await provider.calls[0].wait_until_ended()
    assert provider.calls[0].client_left


async def test_a_character_cut_in_two_by_the_network_arrives_whole(
    provider: Upstream, backend: LiteLLMBackend
):
    said = "川は海へ 🌊 é"

    async def answer(_: Call, wire: Wire) -> None:
        await wire.begin_stream()
        for one in (*said,):
            data = f"data: {openai_format.json_text(chunk({'content': one}))}\n\n".encode()
            for i in range(len(data)):
                await wire.piece(data[i : i + 1])
        await wire.event(chunk({}, finish_reason="stop"))
        await wire.event("[DONE]")
        await wire.end_stream()

    provider.answer = answer

    events = await events_of(backend, request(MODELS["openai"], CHAT, stream=True))

    assert text_of(events) == said


async def test_no_failure_after_the_finish_reason_spoils_the_answer(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "Hi"}), chunk({}, finish_reason="stop"), end=False
    )

    events = await events_of(backend, request(MODELS["openai"], CHAT, stream=True))

    assert text_of(events) == "Hi"
    assert finished_of(events).usage.is_estimated


@pytest.mark.parametrize("piece", [b"x" * 10_000, b": " + b"x" * 9_998 + b"\n\n"], ids=["line", "stream"])
@each
async def test_a_stream_whose_line_or_whole_has_no_end_is_given_up_at_a_bound(
    provider: Upstream, name: str, piece: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measure, "MAX_EVENT_BYTES", 100_000)
    monkeypatch.setattr(measure, "MAX_ANSWER_BYTES", 1_000_000)

    async def endless(_: Call, wire: Wire) -> None:
        await wire.begin_stream()
        if name == "anthropic":
            for event in anthropic_format.events(anthropic_format.text("Hello"))[:4]:
                await wire.event(event, name=event["type"])
        else:
            await wire.event(chunk({"role": "assistant", "content": "Hello"}))
        if b"\n" not in piece:
            await wire.piece(b"data: ")
        while True:
            await wire.piece(piece)

    provider.answer = endless
    async with a_backend(patience=Patience(max_retries=2)) as backend:
        seen, raised = await broken_stream(backend, MODELS[name])

    assert text_of(seen) == "Hello"
    assert type(raised) is UpstreamError
    assert "00000 bytes" in raised.message
    await provider.calls[0].wait_until_ended()
    assert provider.calls[0].client_left
