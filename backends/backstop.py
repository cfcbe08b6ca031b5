"""A limit behind the limits: what runs under it ends, even where its own deadline was missed.

A timer per request, as BentoML's time-out sets, lives until its time is over however soon the request was: at 600 s and
50 requests a second it holds 25 MiB. All that run under one backstop have the same time, so they end in the order in
which they began, and one timer for the first of them is enough. What has ended leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final

from backends.errors import BackendTimeout

_log: Final = logging.getLogger(__name__)


class Backstop:
    """Ends what runs longer than `limit_s`. To be used from one event loop."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s: Final = limit_s
        self._running: dict[Held, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, what: str) -> Held:
        """A block `with …:` that is cancelled after `limit_s` and then raises BackendTimeout. `what` names it in the
        log: a path, never anything of a request's content."""
        return Held(self, what)

    def _add(self, held: Held) -> None:
        self._running[held] = None
        if self._timer is None:
            self._wait_for(held)

    def _remove(self, held: Held) -> None:
        self._running.pop(held, None)

    def _wait_for(self, first: Held) -> None:
        self._timer = asyncio.get_running_loop().call_at(first.ends_at, self._sweep)

    def _sweep(self) -> None:
        """The timer is not moved when the request that it was set for ends: it looks once per `limit_s` at most."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._running:
            first = next(iter(self._running))
            if first.ends_at > now:
                self._wait_for(first)
                return
            del self._running[first]
            first.end()


class Held:
    """One block under a backstop. Not to be entered twice."""

    __slots__ = ("_backstop", "_cancelling", "_is_over", "_task", "_what", "ends_at")

    def __init__(self, backstop: Backstop, what: str) -> None:
        self._backstop = backstop
        self._what = what
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self.ends_at = asyncio.get_running_loop().time() + self._backstop.limit_s
        self._backstop._add(self)

    def end(self) -> None:
        self._is_over = True
        _log.error(
            "%s ran for %g s and is ended: it missed its own deadline", self._what, self._backstop.limit_s
        )
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._backstop._remove(self)
        if not self._is_over:
            return
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise BackendTimeout(f"The request took longer than {self._backstop.limit_s:g} s") from None
