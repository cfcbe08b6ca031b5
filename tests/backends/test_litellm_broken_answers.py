"""Providers that cannot be reached, that say nothing, or that answer something else."""

from __future__ import annotations

import pytest

from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    UpstreamError,
)
from backends.litellm import measure
from backends.litellm.backend import LiteLLMBackend
from backends.litellm.patience import Patience
from tests.backends.litellm_backends import a_backend, needs_litellm
from tests.backends.litellm_calls import (
    MODELS,
    answers_with,
    both,
    each,
    refusal,
)
from tests.backends.provider_upstreams import openrouter_format
from tests.backends.provider_upstreams.openai_format import completion
from tests.backends.provider_upstreams.server import Call, Upstream, Wire

pytestmark = needs_litellm


HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


@both
@each
async def test_a_page_instead_of_an_answer_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend, name: str, stream: bool
):
    async def page(_: Call, wire: Wire) -> None:
        await wire.whole(200, HTML, "text/html; charset=utf-8")

    provider.answer = page

    assert type(await refusal(backend, MODELS[name], stream=stream)) is UpstreamError


@both
@each
async def test_a_page_with_an_error_status_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend, name: str, stream: bool
):
    async def page(_: Call, wire: Wire) -> None:
        await wire.whole(502, HTML, "text/html")

    provider.answer = page

    assert type(await refusal(backend, MODELS[name], stream=stream)) is UpstreamError


@each
async def test_half_a_json_is_the_upstreams_error(provider: Upstream, backend: LiteLLMBackend, name: str):
    async def half(_: Call, wire: Wire) -> None:
        await wire.whole(200, b'{"id": "chatcmpl-1", "choices": [{"index": 0, "mess')

    provider.answer = half

    assert type(await refusal(backend, MODELS[name])) is UpstreamError


@each
async def test_an_answer_that_breaks_off_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend, name: str
):
    async def broken(_: Call, wire: Wire) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
        await wire.raw(head + b'{"id": "ch')
        wire.hang_up()

    provider.answer = broken

    assert type(await refusal(backend, MODELS[name])) is UpstreamError


async def test_an_empty_list_of_choices_is_the_upstreams_error(provider: Upstream, backend: LiteLLMBackend):
    document = completion("never read")
    document["choices"] = []
    provider.answer = answers_with(200, document)

    assert "no choice" in (await refusal(backend)).message


async def test_an_error_under_a_200_is_the_upstreams_error(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = answers_with(200, openrouter_format.error(502, "Provider returned error"))

    assert type(await refusal(backend, MODELS["openrouter"])) is UpstreamError


@both
async def test_a_provider_that_cannot_be_reached_is_unavailable(
    backend: LiteLLMBackend, monkeypatch: pytest.MonkeyPatch, stream: bool
):
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/v1")

    error = await refusal(backend, stream=stream)

    assert isinstance(error, BackendUnavailable)


@both
async def test_a_connection_that_is_reset_is_an_unavailable_provider(
    provider: Upstream, backend: LiteLLMBackend, stream: bool
):
    async def reset(_: Call, wire: Wire) -> None:
        wire.reset()

    provider.answer = reset

    assert isinstance(await refusal(backend, stream=stream), BackendUnavailable)


@both
async def test_silence_runs_into_the_deadline_of_the_request(provider: Upstream, stream: bool):
    async with a_backend(patience=Patience(request_timeout_s=0.3, max_retries=0)) as backend:
        error = await refusal(backend, stream=stream)

    assert isinstance(error, BackendTimeout)
    assert "0.3 s" in error.message
    await provider.calls[0].wait_until_ended()
    assert provider.calls[0].client_left


@pytest.mark.parametrize("status", [200, 500])
@both
@each
async def test_an_answer_without_an_end_is_given_up_at_a_bound_and_not_asked_for_again(
    provider: Upstream, name: str, status: int, stream: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measure, "MAX_ANSWER_BYTES", 100_000)

    async def endless(_: Call, wire: Wire) -> None:
        head = f"HTTP/1.1 {status} Endless\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        await wire.raw(head.encode() + b'd\r\n{"choices": "\r\n')
        while True:
            await wire.piece(b"x" * 10_000)

    provider.answer = endless
    async with a_backend(patience=Patience(max_retries=2)) as backend:
        error = await refusal(backend, MODELS[name], stream=stream)

    assert type(error) is UpstreamError
    assert "more than 100000 bytes" in error.message
    assert len(provider.calls) == 1
    await provider.calls[0].wait_until_ended()
    assert provider.calls[0].client_left
