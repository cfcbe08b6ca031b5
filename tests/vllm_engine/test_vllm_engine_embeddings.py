"""vLLM's embeddings of the shipped model meet the contract. One served instance for all tests, asked over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from backends.base import Backend
from backends.vllm.remote import RemoteBackend
from backends.vllm.upstream import Upstream
from models.card import ModelCard, RemoteSource
from models.catalogue import Catalogue
from tests.backends.embedding_contract import EmbeddingContract, embedded, numbers, wanted
from tests.backends.reference.sentences import WRITTEN
from tests.conformance.conftest import Instance

MODEL = "all-minilm-l6-v2"
REFERENCE = Path(__file__).parents[1] / "backends" / "reference" / "all-minilm-l6-v2.npy"


@pytest.fixture(scope="module")
def instance(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    settings = {
        "LLM_DEFAULT_BACKEND": "vllm",
        "LLM_RATE_LIMIT_RPS": "0",
        "LLM_LOAD_WAIT_S": "280",
        "LLM_ARGS__VLLM__PYTHON": vllm_python,
        "LLM_ARGS__VLLM__KV_CACHE_SPACE_GIB": "1",
        "LLM_ARGS__VLLM__EXTRA_ARGS": '["--enforce-eager"]',
    }
    served = Instance(tmp_path_factory.mktemp("vllm"), settings)
    served.wait_until_ready()
    # The first request waits for the engine.
    httpx.post(f"{served.base_url}/v1/embeddings", json={"model": MODEL, "input": "x"}, timeout=290)
    yield served
    served.stop()


@pytest.fixture
def embedder() -> str:
    return MODEL


@pytest.fixture
async def backend(instance: Instance) -> AsyncIterator[Backend]:
    card = ModelCard(id=MODEL, backend="vllm", sources={"vllm": RemoteSource(name=MODEL)})
    backend = RemoteBackend([Upstream(instance.base_url)], Catalogue([card]), poll_s=60)
    yield backend
    await backend.aclose()


class TestVLLM(EmbeddingContract):
    async def test_the_vectors_are_those_of_sentence_transformers(self, backend: Backend) -> None:
        found = await embedded(backend, wanted(MODEL, *WRITTEN), patience_s=300)

        ours = np.array([numbers(vector) for vector in found.vectors])
        assert (ours * np.load(REFERENCE)).sum(axis=1).min() >= 0.999
