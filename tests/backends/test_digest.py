"""A digest that an event loop asks for is computed once, elsewhere, and waited for as long as one likes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from backends import digest
from backends.digest import ModelDigest

FILES = [Path("/models/m.gguf")]


class Reads:
    """Stands for the reading of files: each ends when the test lets it."""

    def __init__(self, *results: str | OSError | None) -> None:
        self.results = list(results)
        self.go = threading.Event()
        self.threads: list[str] = []
        self.stopped: list[bool] = []

    def __call__(
        self, files: Sequence[Path], *, cache: Path | None, is_stopped: Callable[[], bool]
    ) -> str | None:
        self.threads.append(threading.current_thread().name)
        assert self.go.wait(5)
        self.stopped.append(is_stopped())
        result = self.results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Reads]:
    def make(*results: Any) -> Reads:
        made = Reads(*results)
        monkeypatch.setattr(digest, "digest_of", made)
        return made

    return make


async def test_nothing_is_read_before_somebody_asks(reads: Callable[..., Reads]) -> None:
    made = reads("aa")
    one = ModelDigest(FILES)

    assert (one.value, one.is_pending, made.threads) == (None, False, [])


async def test_it_is_read_once_in_a_thread_of_its_own(reads: Callable[..., Reads]) -> None:
    made = reads("aa")
    made.go.set()
    one = ModelDigest(FILES)

    assert await asyncio.gather(*[one.within(5) for _ in range(3)]) == ["aa"] * 3
    assert await one.within(0) == "aa"
    assert made.threads == ["llm-digest"]
    assert not one.is_pending


async def test_who_does_not_wait_gets_it_the_next_time(reads: Callable[..., Reads]) -> None:
    made = reads("aa")
    one = ModelDigest(FILES)
    assert await one.within(0.01) is None
    assert one.is_pending
    made.go.set()

    assert await one.within(5) == "aa"
    assert made.threads == ["llm-digest"]


async def test_what_is_known_is_not_read(reads: Callable[..., Reads]) -> None:
    made = reads()

    assert await ModelDigest(FILES, known="bb").within(5) == "bb"
    assert made.threads == []


async def test_without_a_file_there_is_none(reads: Callable[..., Reads]) -> None:
    made = reads()

    assert await ModelDigest([]).within(5) is None
    assert made.threads == []


async def test_a_read_that_failed_is_tried_again(
    reads: Callable[..., Reads], caplog: pytest.LogCaptureFixture
) -> None:
    made = reads(OSError("gone"), "aa")
    made.go.set()
    one = ModelDigest(FILES)

    assert await one.within(5) is None
    assert await one.within(5) == "aa"
    assert "cannot be read" in caplog.text


async def test_closing_it_stops_the_read_and_every_later_one(reads: Callable[..., Reads]) -> None:
    made = reads(None)
    one = ModelDigest(FILES)
    one.begin()
    one.close()
    one.close()
    made.go.set()

    assert await one.within(5) is None
    assert await one.within(5) is None
    assert (made.stopped, len(made.threads)) == ([True], 1)


def test_a_loop_that_is_closed_meanwhile_harms_nobody(reads: Callable[..., Reads]) -> None:
    made = reads("aa")

    async def begin() -> None:
        ModelDigest(FILES).begin()

    asyncio.run(begin())
    made.go.set()
    for thread in threading.enumerate():
        if thread.name == "llm-digest":
            thread.join(5)

    assert made.stopped == [False]
