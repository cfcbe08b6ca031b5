"""A model's digest for an event loop: computed in a thread of its own, when somebody first asks, and once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from models.digest import digest_of

log = logging.getLogger(__name__)

NICENESS: Final = 15
"""Of the thread, above the process's: an answer's next word is more urgent, whatever the machine has to do."""


class ModelDigest:
    """Of the files of one model in memory. Used from one event loop; `close` ends what is still being read.

    `known`: where it was verified already, as a card's checksum is when its model is loaded.
    """

    def __init__(self, files: Sequence[Path], *, known: str | None = None, cache: Path | None = None) -> None:
        self._files = tuple(files)
        self._cache = cache
        self._value = known
        self._done: asyncio.Future[None] | None = None
        self._stopped = threading.Event()

    @property
    def value(self) -> str | None:
        """None while it is not known."""
        return self._value

    @property
    def is_pending(self) -> bool:
        """It is being computed."""
        return self._done is not None and not self._done.done()

    def begin(self) -> None:
        """See that it will be known. Returns at once; a read that failed is tried again by the next call."""
        if self._value is not None or self.is_pending or self._stopped.is_set() or not self._files:
            return
        loop = asyncio.get_running_loop()
        self._done = done = loop.create_future()

        def work() -> None:
            _step_back()
            found = None
            try:
                found = digest_of(self._files, cache=self._cache, is_stopped=self._stopped.is_set)
            except OSError as error:
                log.warning("a model's file cannot be read for its digest: %s", error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._arrived, found, done)

        threading.Thread(target=work, name="llm-digest", daemon=True).start()

    async def within(self, seconds: float) -> str | None:
        """The digest, if it is known by then."""
        self.begin()
        if self._value is None and self._done is not None:
            await asyncio.wait({self._done}, timeout=seconds)
        return self._value

    def close(self) -> None:
        """Idempotent."""
        self._stopped.set()

    def _arrived(self, found: str | None, done: asyncio.Future[None]) -> None:
        self._value = found
        if not done.done():
            done.set_result(None)


def _step_back() -> None:
    """Linux counts niceness by thread; elsewhere it is the process's, which is not ours to change."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
