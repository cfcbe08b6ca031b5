"""A file of the operator's that may change while the service runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

RECHECK_S: Final = 1.0
"""How long a change may go unnoticed."""

_log = logging.getLogger(__name__)


class WatchedFile(Generic[T]):
    """What a file says, read again when it changed: looked at at most once a second, when somebody asks.

    A file that cannot be read or parsed leaves the last good value in force and says so in the log, once per
    problem. `what` names the file in such a message; its path and its contents never stand there.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], T],
        *,
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`parse` raises ValueError for what it cannot take. Raises ValueError if the file cannot be used now: there
        is no last good value yet."""
        self._path = path
        self._parse = parse
        self._what = what
        self._clock = clock
        self._checked_at = clock()
        self._stamp: tuple[int, int, int] | None = None
        self._complained: str | None = None
        try:
            self._stamp = self._look()
            self.value = parse(path.read_bytes())
        except (OSError, ValueError) as exc:
            raise ValueError(f"The file of {what} cannot be used: {_reason(exc)}") from None

    def refresh(self) -> bool:
        """Look at the file if it is time to; whether `value` is another one now."""
        now = self._clock()
        if now - self._checked_at < RECHECK_S:
            return False
        self._checked_at = now
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            self.value = self._parse(self._path.read_bytes())
        except (OSError, ValueError) as exc:
            if isinstance(exc, OSError):
                self._stamp = None  # it may come back as it was
            self._complain(_reason(exc))
            return False
        self._complained = None
        return True

    def _look(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _complain(self, reason: str) -> None:
        if reason != self._complained:
            self._complained = reason
            _log.warning("the file of %s cannot be used, the old %s stay: %s", self._what, self._what, reason)


def _reason(exc: Exception) -> str:
    return exc.strerror or "it cannot be read" if isinstance(exc, OSError) else str(exc)
