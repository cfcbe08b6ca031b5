"""What every test of the wire needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.openai_compat.redis_server import RedisServer
from tests.openai_compat.wire import close_apps


@pytest.fixture(autouse=True)
def _apps_are_closed() -> Iterator[None]:
    yield
    close_apps()


@pytest.fixture(scope="session")
def _redis_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_url(_redis_of_session: RedisServer) -> str:
    """A Redis that many tests share: each takes keys of its own."""
    return _redis_of_session.url


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of this test alone, to stop and to start."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()
