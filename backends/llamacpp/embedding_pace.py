"""When the next pass of embeddings may begin while somebody's answer is computed on the same cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

RESTS: Final = 2.0
"""How many times as long as a pass took the next one waits: two of three tokens of a stream then meet no pass."""
KEPT_WAITING: Final = 0.2
"""Share of a pass in which its thread had no core. Below it there are cores enough for both, and nobody waits."""
_LOOK_S: Final = 0.01
_LONGEST_S: Final = 2.0


class Pace:
    """Niceness alone leaves too much to the scheduler: its shares count between threads that both want to run, and the
    threads of a step often sleep for a moment; who then has the core keeps it for some milliseconds, and all threads of
    the step wait for the one that wants it back.

    `is_generating`: whether an answer is computed in this process. `clock` and `sleep` are replaced in tests.
    """

    def __init__(
        self,
        is_generating: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._is_generating = is_generating
        self._clock = clock
        self._sleep = sleep
        self._not_before = 0.0

    def passed(self, seconds: float, cpu_seconds: float) -> None:
        """A pass took so long, and its thread had a core for so much of it."""
        is_crowded = cpu_seconds < seconds * (1 - KEPT_WAITING)
        self._not_before = self._clock() + min(RESTS * seconds, _LONGEST_S) if is_crowded else 0.0

    async def turn(self) -> None:
        """Until the next pass may begin: when the rest is over, or no answer is computed any more."""
        while (left := self._not_before - self._clock()) > 0 and self._is_generating():
            await self._sleep(min(left, _LOOK_S))
