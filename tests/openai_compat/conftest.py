"""What every test of the wire needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.openai_compat.wire import close_apps


@pytest.fixture(autouse=True)
def _apps_are_closed() -> Iterator[None]:
    yield
    close_apps()
