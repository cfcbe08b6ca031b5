"""The real vLLM: an interpreter that has it and weights that it can load, told by two variables that `make test-vllm`
sets. Without them everything here is skipped.

    TEST_VLLM_PYTHON     the interpreter
    TEST_VLLM_WEIGHTS    a folder of weights (tools/vllm_weights.py makes one)
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from backends.base import Backend
from backends.pool import PooledBackend
from backends.registry import FEATURES
from tests.vllm_engine.shared_engine import CARD_ARGS, Served, SharedLoader, running

__all__ = ["CARD_ARGS"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    absent = not os.environ.get("TEST_VLLM_PYTHON") or not os.environ.get("TEST_VLLM_WEIGHTS")
    for item in items:
        if here in item.path.parents:
            item.add_marker("vllm")
            item.add_marker(pytest.mark.timeout(600))
            if absent:
                item.add_marker(pytest.mark.skip(reason="needs vLLM; make test-vllm sets it up"))


@pytest.fixture(scope="session")
def vllm_python() -> str:
    return os.environ["TEST_VLLM_PYTHON"]


@pytest.fixture(scope="session")
def weights() -> Path:
    return Path(os.environ["TEST_VLLM_WEIGHTS"])


@pytest.fixture(scope="session")
def shared(vllm_python: str, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running(vllm_python, weights, tmp_path_factory.mktemp("v")) as served:
        yield served


@pytest.fixture
async def backend(shared: Served) -> AsyncIterator[Backend]:
    """A pool over the shared engine."""
    pool = PooledBackend(SharedLoader(shared))
    pool.features = FEATURES["vllm"]
    yield pool
    await pool.aclose()
