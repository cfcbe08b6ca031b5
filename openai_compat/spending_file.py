"""Spending in an SQLite file, which survives a restart and which all gateway workers of a host share.

The file is `spending.sqlite3` in the state folder: a row per principal and day. Older days are dropped.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from openai_compat.budgets import Spent, StoreUnavailable, day_of, resets_in_s

T = TypeVar("T")

FILE: Final = "spending.sqlite3"
KEEP_DAYS: Final = 7
_BUSY_S: Final = 2.0
"""How long a write waits for another worker's."""
_PAUSE_S: Final = 0.005

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS spending (
    day INTEGER NOT NULL,
    principal TEXT NOT NULL,
    nanos INTEGER NOT NULL,
    PRIMARY KEY (day, principal)
) WITHOUT ROWID
"""
_ADD: Final = """
INSERT INTO spending (day, principal, nanos) VALUES (?, ?, ?)
ON CONFLICT (day, principal) DO UPDATE SET nanos = nanos + excluded.nanos
"""
_SPENT: Final = "SELECT nanos FROM spending WHERE day = ? AND principal = ?"
_FORGET: Final = "DELETE FROM spending WHERE day < ?"


class SpendingFile:
    """A `SpendingStore` in `folder`, which is made when something is first asked.

    SQLite blocks while it waits for another process, so it is used from a thread of its own; one call costs about
    0.1 ms.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._cleaned_on = 0

    async def spent(self, name: str) -> Spent:
        """See `SpendingStore`."""
        return await self._call(lambda: self._spent(name))

    async def add(self, name: str, nanos: int) -> None:
        """See `SpendingStore`. Durable against the end of the process; a power failure may cost the last second."""
        await self._call(lambda: self._add(name, nanos))

    async def aclose(self) -> None:
        """Close the file. A later call opens it again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spending")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._patiently, work)
        except (sqlite3.Error, OSError) as exc:
            raise StoreUnavailable(f"{self._folder / FILE}: {exc}") from None

    # In the thread.

    def _patiently(self, work: Callable[[], T]) -> T:
        # SQLite's own time-out does not cover everything: a connection that turns the log on, or finds it being put in
        # order after another's end, is told at once that the file is busy.
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return work()
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _spent(self, name: str) -> Spent:
        now = self._clock()
        row = self._open().execute(_SPENT, (day_of(now), name)).fetchone()
        return Spent(int(row[0]) if row else 0, resets_in_s(now))

    def _add(self, name: str, nanos: int) -> None:
        day = day_of(self._clock())
        connection = self._open()
        if day != self._cleaned_on:
            connection.execute(_FORGET, (day - KEEP_DAYS,))
            self._cleaned_on = day
        # Last, since whatever fails is done once more.
        connection.execute(_ADD, (day, name, nanos))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._folder / FILE
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            # Without transactions of the module's own: each statement is one.
            connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(_TABLE)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
