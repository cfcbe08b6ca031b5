"""The real vLLM: an interpreter that has it and weights that it can load, told by two variables that `make test-vllm`
sets. Without them everything here is skipped.

    TEST_VLLM_PYTHON     the interpreter
    TEST_VLLM_WEIGHTS    a folder of weights (tools/vllm_weights.py makes one)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CARD_ARGS = ("--enforce-eager",)
"""Without compilation: it takes minutes on a CPU, and no test here looks at speed."""


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
