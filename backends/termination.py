"""SIGTERM and SIGINT: finish what runs before the server hears of it.

uvicorn stops accepting connections on the first signal, so a client that comes during the drain would hang in the
socket's backlog and then be reset. Here the signal first starts our own drain, while the server goes on answering
(with refusals); when the drain is over, or a second signal comes, the server's own handler runs.

Whoever signals every process of the service at once (systemd's stop does) makes it arrive twice: directly, and from
the supervisor, which passes its own on. Those two are one wish to stop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

log = logging.getLogger("llm.termination")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SAME_WISH_S = 1.0
"""The supervisor passes a signal on within some milliseconds; nobody loses patience that fast."""


class Termination:
    """Puts `drain` in front of the handlers that are installed now. Call it from the main thread, inside the running
    loop, after the server has installed its own."""

    def __init__(self, drain: Callable[[], Awaitable[None]], *, same_wish_s: float = _SAME_WISH_S) -> None:
        self._drain = drain
        self._same_wish_s = same_wish_s
        self._begun_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._previous: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Python runs this between two instructions of the main thread; the loop may be asleep in its selector.
        self._loop.call_soon_threadsafe(self._begin, number, frame)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        if self._task is not None:
            if self._loop.time() - self._begun_at >= self._same_wish_s:
                self._pass_on(number, frame)
            return
        self._begun_at = self._loop.time()
        self._task = self._loop.create_task(self._drain_then_stop(number, frame))

    async def _drain_then_stop(self, number: int, frame: FrameType | None) -> None:
        log.info("draining after %s", signal.Signals(number).name)
        try:
            await self._drain()
        except Exception:
            log.exception("the drain failed; stopping all the same")
        self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        handler = self._previous[number]
        if callable(handler):
            handler(number, frame)
        else:
            signal.signal(number, handler)
            signal.raise_signal(number)
