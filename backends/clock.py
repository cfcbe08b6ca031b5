"""Time as something that is passed in, so that a test can hold it still."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Returns once `now` has grown by that much."""


class MonotonicClock:
    """The process's own clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
