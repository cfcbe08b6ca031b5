"""Fixtures that several files of tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.vllm.upstream import Upstream
from tests.backends.openai_upstream import OpenAIUpstream
from tests.backends.pool_bench import Bench


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
