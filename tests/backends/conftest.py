"""Fixtures that several files of tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.litellm.backend import LiteLLMBackend
from backends.vllm.upstream import Upstream
from tests.backends.litellm_backends import a_backend, environment
from tests.backends.openai_upstream import OpenAIUpstream
from tests.backends.pool_bench import Bench
from tests.backends.provider_upstreams import server as providers


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A pool without limits."""
    bench = Bench()
    yield bench
    await bench.pool.aclose()


@pytest.fixture
async def server() -> AsyncIterator[OpenAIUpstream]:
    async with OpenAIUpstream() as server:
        yield server


@pytest.fixture
async def upstream(server: OpenAIUpstream) -> AsyncIterator[Upstream]:
    """Our side of `server`."""
    upstream = Upstream(server.url, api_key="sk-the-key")
    yield upstream
    await upstream.aclose()


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[providers.Upstream]:
    """All of LiteLLM's providers: a server on loopback that says what it is told to, and nothing until then."""
    async with providers.upstream(providers.silence) as one:
        environment(monkeypatch, one.url)
        yield one


@pytest.fixture
async def backend(provider: providers.Upstream) -> AsyncIterator[LiteLLMBackend]:
    """LiteLLM's backend in front of `provider`."""
    async with a_backend() as one:
        yield one
