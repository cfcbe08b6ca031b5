"""What the log says of a backend's health."""

from __future__ import annotations

import logging

import pytest

from backends.types import BackendHealth
from openai_compat.serving.health import HealthCache
from tests.openai_compat.scripted_backend import ScriptedBackend


async def asked(cache: HealthCache) -> None:
    await cache._ask("fake")


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


async def test_each_change_stands_in_the_log_once(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    report = BackendHealth(healthy=True)

    async def health() -> BackendHealth:
        return report

    monkeypatch.setattr(backend, "health", health)
    cache = HealthCache({"fake": backend})
    for state in (True, True, False, False, True):
        report = BackendHealth(healthy=state, message=None if state else "The runner does not answer")
        await asked(cache)
        cache.forget("fake")

    assert [record.getMessage() for record in caplog.records] == [
        "backend 'fake' is healthy",
        "backend 'fake' is not healthy: The runner does not answer",
        "backend 'fake' is healthy",
    ]


async def test_a_check_that_fails_says_why_once(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def health() -> BackendHealth:
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(backend, "health", health)
    cache = HealthCache({"fake": backend})
    for _ in range(2):
        await asked(cache)

    assert caplog.text.count("RuntimeError: a fault of our own") == 1
    assert cache.last("fake") == BackendHealth(healthy=False, message="The health check failed")
