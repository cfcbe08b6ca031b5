"""What is lost when LiteLLM's own functions fail is said, once and without what a caller sent."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from backends.litellm import upgrades
from backends.litellm.deployment import Deployment
from backends.litellm.usage import Tokens, price


@pytest.fixture(autouse=True)
def _nothing_told() -> Iterator[None]:
    upgrades._told.clear()
    yield
    upgrades._told.clear()


def broken(*_: Any, **__: Any) -> Any:
    raise TypeError("unexpected argument, and a caller's secret")


def test_a_price_that_cannot_be_computed_is_no_silent_zero(caplog: pytest.LogCaptureFixture) -> None:
    deployment = Deployment(provider="openai", model="gpt-4o", supported=frozenset(), mode="chat")
    sdk = SimpleNamespace(cost_per_token=broken)

    with caplog.at_level(logging.WARNING):
        assert [price(sdk, deployment, None, Tokens(prompt=1)) for _ in range(3)] == [None] * 3

    assert caplog.text.count("is not counted") == 1
    assert "secret" not in caplog.text


@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="LiteLLM is not installed")
def test_the_version_is_the_one_whose_insides_were_read() -> None:
    found = importlib.metadata.version("litellm")

    assert found == upgrades.LOOKED_AT, (
        f"LiteLLM {found} is installed, and {upgrades.LOOKED_AT} was looked at. What our code uses of its insides, and "
        "what is lost where they have changed, stands at LOOKED_AT in backends/litellm/upgrades.py: read those places "
        "of the new version, run the other tests of LiteLLM, and write the new version there."
    )
