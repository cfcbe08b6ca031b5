"""The fake's embeddings meet the contract, directly and behind the runner's wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.base import Backend
from backends.embedding import RerankRequest
from backends.errors import UnsupportedParameter
from backends.fake.loader import FakeLoader
from backends.pool import PooledBackend
from models.catalogue import Catalogue
from tests.backends.embedding_contract import LocalEmbeddingContract
from tests.backends.serving import served

DOCUMENTS = ("xylophones rust slowly", "rivers carry water to the sea", "water is wet")


def a_pool() -> PooledBackend:
    return PooledBackend(FakeLoader(resolve=Catalogue.load(None).resolve))


def rerank(model: str = "fake-embeddings", **fields: int) -> RerankRequest:
    return RerankRequest(request_id="r", model=model, query="water of rivers", documents=DOCUMENTS, **fields)


@pytest.fixture
def embedder() -> str:
    return "fake-embeddings"


@pytest.fixture
def generator() -> str:
    return "fake-echo"


class TestFake(LocalEmbeddingContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        backend = a_pool()
        await backend.start()
        yield backend
        await backend.aclose()


class TestFakeBehindTheRunnerWire(LocalEmbeddingContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with served(a_pool()) as client:
            yield client

    async def test_ranks_cross_the_wire_best_first(self, backend: Backend) -> None:
        found = await backend.rerank(rerank())

        assert [score.index for score in found.scores] == [1, 2, 0]
        assert [s.score for s in found.scores] == sorted((s.score for s in found.scores), reverse=True)

    async def test_top_n_keeps_the_best(self, backend: Backend) -> None:
        found = await backend.rerank(rerank(top_n=1))

        assert [score.index for score in found.scores] == [1]

    async def test_a_model_that_generates_text_ranks_nothing(self, backend: Backend) -> None:
        with pytest.raises(UnsupportedParameter):
            await backend.rerank(rerank("fake-echo"))
