"""Which of several servers gets a request. Pure: the time and the chance come from outside, nothing is sent.

`pick` decides in this order:

1. Servers in a pause after failures are left out. One whose pause is over takes one request to show that it is back;
   until that one has ended the others go on without it.
2. If that leaves nobody: the one whose pause ends first, so that a request is tried rather than refused unasked.
3. A request with a key (its conversation) goes to its own server, which has the beginning in its cache: the one with
   the highest hash of key and server. Servers that come and go move only their own keys, and no table is kept.
4. Its own server is passed over while it is much busier than the least busy one: `SLACK` requests and twice as many.
5. Everything else goes to the least busy one, in turn where several are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

FAILURES_TO_EJECT: Final = 3
"""Failures in a row that take a server out."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
SLACK: Final = 4
"""Requests that a conversation's own server may have more than the least busy one, whatever the ratio."""


@dataclass(slots=True)
class _Server:
    failures: int = 0
    """In a row."""
    pauses: int = 0
    """In a row, so that each is longer."""
    out_until: float | None = None
    """None: it is in. In the past: it may show that it is back."""
    is_probing: bool = False


class Balancer:
    """The state of `num_servers` servers, by index. `now` in seconds of any clock that only goes forward; `chance`
    gives 0–1 and spreads the pauses, so that several gateways do not come back to a server at once."""

    def __init__(
        self, num_servers: int, *, now: Callable[[], float], chance: Callable[[], float] = random.random
    ) -> None:
        self._servers = [_Server() for _ in range(num_servers)]
        self._now = now
        self._chance = chance
        self._turn = 0

    def pick(self, key: bytes | None, running: Sequence[int], among: Collection[int]) -> int | None:
        """The server for a request, None if `among` is empty. `running`: requests under way at each server. Whoever
        picks reports the end with `succeeded`, `failed` or `left`."""
        now = self._now()
        ready = [i for i in among if self._is_ready(self._servers[i], now)]
        if not ready:
            ready = sorted(among, key=lambda i: self._servers[i].out_until or now)[:1]
            if not ready:
                return None
        chosen = self._choose(key, running, ready)
        server = self._servers[chosen]
        server.is_probing = server.out_until is not None
        return chosen

    def succeeded(self, index: int) -> None:
        """The server answered, if only to refuse the request itself."""
        server = self._servers[index]
        server.failures = server.pauses = 0
        server.out_until = None
        server.is_probing = False

    def failed(self, index: int) -> None:
        """The server could not be reached, broke off or failed."""
        server = self._servers[index]
        server.failures += 1
        server.is_probing = False
        if server.out_until is not None or server.failures >= FAILURES_TO_EJECT:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**server.pauses)
            server.pauses = min(server.pauses + 1, 16)
            server.out_until = self._now() + pause_s * (0.5 + 0.5 * self._chance())

    def left(self, index: int) -> None:
        """The request ended before the server had shown anything: its client left."""
        self._servers[index].is_probing = False

    def is_out(self, index: int) -> bool:
        """Whether the server is in a pause, or has not shown yet that it is back."""
        return self._servers[index].out_until is not None

    def invite(self, index: int) -> None:
        """A sign of life: the next request may try the server, whatever is left of its pause."""
        server = self._servers[index]
        if server.out_until is not None:
            server.out_until = min(server.out_until, self._now())

    def _is_ready(self, server: _Server, now: float) -> bool:
        return server.out_until is None or (server.out_until <= now and not server.is_probing)

    def _choose(self, key: bytes | None, running: Sequence[int], ready: Sequence[int]) -> int:
        least = min(running[i] for i in ready)
        if key is not None:
            own = max(ready, key=lambda i: blake2b(key, digest_size=8, salt=b"%d" % i).digest())
            if running[own] <= max(least + SLACK, 2 * least):
                return own
        self._turn += 1
        idle = [i for i in ready if running[i] == least]
        return idle[self._turn % len(idle)]
