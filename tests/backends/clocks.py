"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio


class FakeClock:
    """A `backends.clock.Clock`."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        sleeper = (self._now + seconds, asyncio.get_running_loop().create_future())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1]
        finally:
            self._sleepers.remove(sleeper)

    @property
    def sleeping(self) -> int:
        return len(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Move time, waking sleepers in order, and let everybody who woke do what can be done at once."""
        await settle()  # whoever is about to sleep counts from the time before
        until = self._now + seconds
        while due := [s for s in self._sleepers if s[0] <= until and not s[1].done()]:
            self._now, future = min(due, key=lambda s: s[0])
            future.set_result(None)
            await settle()
        self._now = until
        await settle()


async def settle() -> None:
    """Let every task run until it waits for something outside the event loop."""
    for _ in range(30):
        await asyncio.sleep(0)
