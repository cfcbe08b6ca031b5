"""llama.cpp meets the contract with the shipped model, directly and as a runner behind the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.base import Backend
from backends.pool import PooledBackend
from backends.registry import FEATURES
from tests.backends.contract import BackendContract
from tests.backends.serving import served
from tests.backends.shipped_model import MODEL, a_backend, a_loader

pytestmark = pytest.mark.engine


@pytest.fixture
def model() -> str:
    return MODEL


class TestLlamaCpp(BackendContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with a_backend() as backend:
            yield backend


class TestLlamaCppBehindTheRunnerWire(BackendContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        pool = PooledBackend(a_loader())
        pool.features = FEATURES["llamacpp"]
        async with served(pool) as client:
            yield client
