"""What our transport adds to LiteLLM's: keys stay with their provider, and what is read along is readable."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.errors import UpstreamError
from backends.litellm.backend import LiteLLMBackend
from backends.types import ChatPrompt, TextDelta
from tests.backends.contract import events_of, request, text_of
from tests.backends.litellm_backends import a_backend, environment, needs_litellm
from tests.backends.litellm_calls import answers_with, both, openai_stream, refusal
from tests.backends.provider_upstreams import openai_format
from tests.backends.provider_upstreams.openai_format import chunk, completion
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream

pytestmark = needs_litellm

HELLO = ChatPrompt(messages=[{"role": "user", "content": "hi"}])
MODELS = ["gpt-4o", "claude-sonnet-4-5", "openrouter/meta-llama/llama-3-70b-instruct", "groq/m"]


async def answering(_: Call, wire: Wire) -> None:
    await wire.json(200, completion("ok"))


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upstream]:
    async with upstream(answering) as server:
        environment(monkeypatch, server.url)
        monkeypatch.setenv("GROQ_API_KEY", "gsk-0123456789abcdef")
        monkeypatch.setenv("GROQ_API_BASE", server.url)
        yield server


@both
@pytest.mark.parametrize("status", [302, 307, 308])
@pytest.mark.parametrize("model", MODELS)
async def test_a_redirect_to_somebody_else_is_not_followed(
    provider: Upstream, model: str, status: int, stream: bool
) -> None:
    async with upstream(answering) as elsewhere, a_backend() as backend:

        async def redirect(_: Call, wire: Wire) -> None:
            await wire.whole(status, b"", location=f"{elsewhere.url}/v1/chat/completions")

        provider.answer = redirect
        with pytest.raises(UpstreamError):
            await events_of(backend, request(model, HELLO, stream=stream))

        assert (len(provider.calls), elsewhere.connections) == (1, 0)


async def test_a_redirect_within_the_provider_is_followed(provider: Upstream) -> None:
    async def redirect(_: Call, wire: Wire) -> None:
        await wire.whole(307, b"", location="/v2/chat/completions")

    provider.answers = [redirect]
    async with a_backend() as backend:
        said = await events_of(backend, request("gpt-4o", HELLO, stream=False))

    assert text_of(said) == "ok"
    assert [call.path for call in provider.calls] == ["/v1/chat/completions", "/v2/chat/completions"]


@both
async def test_answers_are_asked_for_unpacked(provider: Upstream, stream: bool) -> None:
    """A stream that came packed could not be read along."""
    async with a_backend() as backend:
        for model in MODELS:
            try:
                await events_of(backend, request(model, HELLO, stream=stream))
            except UpstreamError:
                continue  # what it answers is of no format of a stream, or of another provider

    assert [call.headers["accept-encoding"] for call in provider.calls] == ["identity"] * len(MODELS)


async def test_a_connection_is_used_again_after_an_answer_and_after_a_refusal(
    provider: Upstream, backend: LiteLLMBackend
):
    hello = openai_stream(chunk({"role": "assistant", "content": "Hi"}), chunk({}, finish_reason="stop"))
    refused = answers_with(400, openai_format.error("No", kind="invalid_request_error"))
    provider.answers = [answers_with(200, completion("Hi")), hello, refused, hello]

    for number in range(4):
        if number == 2:
            await refusal(backend)
        else:
            events = await events_of(backend, request("gpt-4o", HELLO, stream=number % 2 == 1))
            assert any(isinstance(event, TextDelta) for event in events)

    assert provider.connections == 1
