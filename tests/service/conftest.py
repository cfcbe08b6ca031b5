"""Starts real services with settings of their own; every test here runs `bentoml serve .` as a subprocess."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.conformance.conftest import Instance

Start = Callable[..., Instance]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("serve")


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start(LLM_X="1")` gives a running service; `wait=False` one that may still be starting, or failing."""
    instances: list[Instance] = []

    def begin(*, wait: bool = True, **settings: str) -> Instance:
        instance = Instance(tmp_path_factory.mktemp("service"), settings)
        instances.append(instance)
        if wait:
            instance.wait_until_ready()
        return instance

    yield begin
    for instance in instances:
        instance.stop()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One service for a module whose tests change nothing in it, with rate limits out of the way."""
    made = Instance(tmp_path_factory.mktemp("service"), {"LLM_RATE_LIMIT_RPS": "0"})
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.stop()


@pytest.fixture
def client(instance: Instance) -> Iterator[openai.OpenAI]:
    url = f"{instance.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client
