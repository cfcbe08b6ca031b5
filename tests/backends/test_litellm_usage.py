"""Tokens of an answer: the provider's own count, or ours, marked as one."""

from __future__ import annotations

from backends.litellm.backend import LiteLLMBackend
from tests.backends.contract import events_of, finished_of, request
from tests.backends.litellm_backends import needs_litellm
from tests.backends.litellm_calls import (
    CHAT,
    MODELS,
    answers_with,
    openai_stream,
)
from tests.backends.provider_upstreams import openai_format
from tests.backends.provider_upstreams.openai_format import chunk, completion
from tests.backends.provider_upstreams.server import Upstream

pytestmark = needs_litellm


async def test_usage_that_never_comes_is_counted_and_marked(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "one two three four"}), chunk({}, finish_reason="stop")
    )

    usage = finished_of(await events_of(backend, request(MODELS["openai"], CHAT, stream=True))).usage

    assert usage.is_estimated
    assert usage.completion_tokens == 4
    assert usage.prompt_tokens > 5
    assert usage.cost_usd is not None


async def test_usage_that_a_whole_answer_lacks_is_counted_and_marked(
    provider: Upstream, backend: LiteLLMBackend
):
    document = completion("one two three four")
    del document["usage"]
    provider.answer = answers_with(200, document)

    usage = finished_of(await events_of(backend, request(MODELS["openai"], CHAT))).usage

    assert (usage.completion_tokens, usage.is_estimated) == (4, True)


async def test_usage_after_the_finish_chunk_is_the_providers(provider: Upstream, backend: LiteLLMBackend):
    counts = openai_format.usage(1200, 34, cached=1024, reasoning=20)
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "Hi"}),
        chunk({}, finish_reason="stop"),
        chunk(None, counts=counts),
    )

    usage = finished_of(await events_of(backend, request(MODELS["openai"], CHAT, stream=True))).usage

    assert not usage.is_estimated
    assert (usage.prompt_tokens, usage.completion_tokens) == (1200, 34)
    assert (usage.cached_tokens, usage.reasoning_tokens) == (1024, 20)
