"""Who may run a completion now, who waits, who is refused.

    a slot is free, nobody waits   run
    a place in the queue is free   wait at most `queue_timeout_s`; principals take turns
    else                           Overloaded, at once

One request takes one slot, whatever its `n`. The slots themselves are a `SlotStore`: a list in this process,
or the locks that all gateway workers share (`shared_limits`). With shared slots the order among the waiting
requests of *different* workers is whoever looks first. `leased_admission` shares them between replicas.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from backends.errors import Draining, Overloaded
from openai_compat.config import WireConfig
from openai_compat.errors import TooManyAtOnce
from openai_compat.shared_limits import SharedOwnSlots, SharedSlots

_POLL_S = 0.01
"""How often a waiting request looks for a slot that another worker gave back."""
_FIRST_GUESS_S = 1.0
_SMOOTHING = 0.1


class SlotStore(Protocol):
    """A fixed number of slots."""

    def try_acquire(self) -> int | None:
        """A free slot's number, or None at once."""

    def release(self, number: int) -> None:
        """Give the slot back."""


class LocalSlots:
    """The slots of one process."""

    def __init__(self, size: int) -> None:
        self._free = list(range(size))

    def try_acquire(self) -> int | None:
        """See `SlotStore`."""
        return self._free.pop() if self._free else None

    def release(self, number: int) -> None:
        """See `SlotStore`."""
        self._free.append(number)


class OwnSlotStore(Protocol):
    """Slots that each principal has for himself, as many as his limit says when he asks."""

    def try_acquire(self, principal: str, limit: int) -> int | None:
        """The number of a slot of his that is free, below `limit`, or None at once."""

    def release(self, principal: str, number: int) -> None:
        """Give it back."""


class LocalOwnSlots:
    """Those of one process."""

    def __init__(self) -> None:
        self._held: dict[str, set[int]] = {}

    def try_acquire(self, principal: str, limit: int) -> int | None:
        """See `OwnSlotStore`."""
        held = self._held.setdefault(principal, set())
        if len(held) >= limit:
            return None
        number = next(number for number in range(limit) if number not in held)
        held.add(number)
        return number

    def release(self, principal: str, number: int) -> None:
        """See `OwnSlotStore`."""
        held = self._held[principal]
        held.discard(number)
        if not held:
            del self._held[principal]


class Slot:
    """The slot of one request: entered once, released once, whatever ends the request."""

    __slots__ = (
        "_admission",
        "_number",
        "_own",
        "_own_lease",
        "_started_at",
        "limit",
        "principal",
        "queue_ms",
    )

    def __init__(self, admission: Admission, principal: str, limit: int | None = None) -> None:
        self._admission = admission
        self._number: int | None = None
        self._own: int | None = None
        self._own_lease: int | None = None
        self._started_at = 0.0
        self.principal = principal
        self.limit = limit
        """How many of the principal's requests may run or wait at once; None: no limit but the service's."""
        self.queue_ms = 0.0
        """How long the request waited; 0.0 if it did not."""

    def release(self) -> None:
        """Give the slot back; the second and later calls do nothing."""
        self._admission._leave(self)

    async def __aenter__(self) -> Slot:
        await self._admission._enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    """The completion slots, as one process sees them. Used from one event loop.

    `places` are the waiting places of the service; None: nobody waits. `poll_s` is set when other processes
    use the same slots. `on_change(running, waiting)` is called after every change of the two.
    """

    def __init__(
        self,
        slots: SlotStore,
        *,
        num_slots: int,
        places: SlotStore | None = None,
        own_slots: OwnSlotStore | None = None,
        queue_timeout_s: float = 0.0,
        poll_s: float | None = None,
        on_change: Callable[[int, int], None] = lambda _running, _waiting: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._own_slots = own_slots or LocalOwnSlots()
        self._num_slots = num_slots
        self._places = places if queue_timeout_s > 0 else None
        self._queue_timeout_s = queue_timeout_s
        self._poll_s = poll_s
        self._on_change = on_change
        self._clock = clock
        self._queue = _FairQueue()
        self._running = 0
        self._draining = False
        self._polling: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._mean_s = _FIRST_GUESS_S

    @classmethod
    def from_config(
        cls,
        config: WireConfig,
        *,
        on_change: Callable[[int, int], None] = lambda _running, _waiting: None,
        **more: Any,
    ) -> Self:
        """In memory for one worker, in the shared folder for several. `more`: what a subclass needs besides."""
        limit, queue_size = config.max_concurrent_completions, config.queue_size
        slots: SlotStore = LocalSlots(limit)
        places: SlotStore | None = LocalSlots(queue_size) if queue_size > 0 else None
        own_slots: OwnSlotStore = LocalOwnSlots()
        shared = config.shared_dir if config.num_workers > 1 else None
        if shared is not None:
            slots = SharedSlots.open(shared / "completion_slots", limit)
            places = SharedSlots.open(shared / "waiting_places", queue_size) if queue_size > 0 else None
            own_slots = SharedOwnSlots.open(shared / "principals_slots")
        return cls(
            slots,
            num_slots=limit,
            places=places,
            own_slots=own_slots,
            queue_timeout_s=config.queue_timeout_s,
            poll_s=None if shared is None else _POLL_S,
            on_change=on_change,
            **more,
        )

    @classmethod
    def for_embeddings(cls, config: WireConfig, **more: Any) -> Self:
        """The slots of calls that are answered whole; nobody waits for one."""
        limit = config.max_concurrent_embeddings
        shared = config.shared_dir if config.num_workers > 1 else None
        slots: SlotStore = LocalSlots(limit)
        if shared is not None:
            slots = SharedSlots.open(shared / "embedding_slots", limit)
        return cls(slots, num_slots=limit, **more)

    @property
    def running(self) -> int:
        """Completions that hold a slot in this process."""
        return self._running

    @property
    def waiting(self) -> int:
        """Completions that wait for a slot in this process."""
        return len(self._queue)

    @property
    def draining(self) -> bool:
        """True after `drain`."""
        return self._draining

    @property
    def retry_after_s(self) -> float:
        """When a slot should be free, 1–30 s: the mean time a completion held one, times who is before
        you."""
        return min(30.0, max(1.0, self._mean_s * (len(self._queue) + 1) / self._num_slots))

    def slot(self, principal: str, limit: int | None = None) -> Slot:
        """`async with admission.slot(principal) as slot:`, or `await admission.acquire(principal)`. `limit`: how many
        of this principal's may run or wait at once.

        Raises on entry: TooManyAtOnce, Overloaded (no slot, no place, or waited too long), Draining.
        """
        return Slot(self, principal, limit)

    async def acquire(self, principal: str) -> Slot:
        """An entered slot; the caller owes it one `release`."""
        return await self.slot(principal).__aenter__()

    def drain(self) -> None:
        """Refuse whatever comes from now on, and whoever still waits, with Draining. What runs goes on."""
        self._draining = True
        for waiter in self._queue.clear():
            if not waiter.done():
                waiter.set_exception(self._refusal())
        self._changed()

    async def idle(self, timeout_s: float) -> bool:
        """True as soon as nothing runs here any more; False after `timeout_s`."""
        if self._running == 0:
            return True
        future = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._idle.remove(future)
        return True

    async def _enter(self, slot: Slot) -> None:
        if slot.limit is not None:
            slot._own = self._take_own(slot.principal, slot.limit)
        try:
            slot._number, slot._started_at, slot.queue_ms = await self._obtain(slot.principal)
        except BaseException:
            self._leave(slot)
            raise

    def _leave(self, slot: Slot) -> None:
        """Give back whatever the slot's request holds; a second call finds nothing."""
        number, slot._number = slot._number, None
        if number is not None:
            self._ended(number, slot._started_at)
        own, slot._own = slot._own, None
        if own is not None:
            self._own_slots.release(slot.principal, own)

    async def _obtain(self, principal: str) -> tuple[int, float, float]:
        """(slot number, now, queue_ms)."""
        if self._draining:
            raise self._refusal()
        if not self._queue:  # whoever waits goes first
            number = self._take()
            if number is not None:
                self._changed()
                return number, self._clock(), 0.0
        place = None if self._places is None else self._places.try_acquire()
        if self._places is None or place is None:
            raise self._refusal()
        try:
            since = self._clock()
            number = await self._wait(principal)
            now = self._clock()
            return number, now, max(0.0, now - since) * 1000.0
        finally:
            self._places.release(place)

    async def _wait(self, principal: str) -> int:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[int] = loop.create_future()
        expiry = loop.call_later(self._queue_timeout_s, self._expire, waiter)
        self._queue.push(principal, waiter)
        self._changed()
        self._arm()
        try:
            return await waiter
        except asyncio.CancelledError:
            # The slot may have been granted in the same turn of the loop that cancelled us.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give(waiter.result())
            raise
        finally:
            expiry.cancel()
            self._queue.remove(principal, waiter)
            self._changed()

    def _expire(self, waiter: asyncio.Future[int]) -> None:
        if not waiter.done():
            waiter.set_exception(self._refusal())

    def _refusal(self) -> Draining | Overloaded:
        if self._draining:
            return Draining("The service is shutting down", retry_after_s=self.retry_after_s)
        return Overloaded("Concurrency limit exceeded", retry_after_s=self.retry_after_s)

    def _ended(self, number: int, started_at: float) -> None:
        self._mean_s += _SMOOTHING * (self._clock() - started_at - self._mean_s)
        self._give(number)
        self._changed()

    def _take_own(self, principal: str, limit: int) -> int:
        """One of the principal's own places, which he keeps while he waits, too. Raises: TooManyAtOnce, Draining."""
        if self._draining:
            raise self._refusal()
        number = self._own_slots.try_acquire(principal, limit)
        if number is None:
            raise TooManyAtOnce(limit, retry_after_s=min(30.0, max(1.0, self._mean_s / limit)))
        return number

    def _take(self) -> int | None:
        number = self._slots.try_acquire()
        if number is not None:
            self._running += 1
        return number

    def _give(self, number: int) -> None:
        self._free(number)
        self._running -= 1
        self._pump()
        if self._running == 0:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)

    def _free(self, number: int) -> None:
        self._slots.release(number)

    def _pump(self) -> None:
        """Hand free slots to whoever waits, one principal after the other."""
        while self._queue:
            number = self._take()
            if number is None:
                return
            waiter = self._queue.pop()
            if waiter is None:
                self._running -= 1
                self._free(number)
                return
            waiter.set_result(number)

    def _arm(self) -> None:
        if self._poll_s is not None and self._polling is None and self._queue:
            self._polling = asyncio.get_running_loop().call_later(self._poll_s, self._poll)

    def _poll(self) -> None:
        self._polling = None
        self._pump()
        self._arm()

    def _changed(self) -> None:
        self._on_change(self._running, len(self._queue))


class _FairQueue:
    """Waiting requests: one line per principal, and the principals take turns."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[asyncio.Future[int]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, principal: str, waiter: asyncio.Future[int]) -> None:
        self._lines.setdefault(principal, deque()).append(waiter)
        self._size += 1

    def pop(self) -> asyncio.Future[int] | None:
        """The next one that still waits; its principal goes to the end of the round."""
        while self._lines:
            principal, line = self._lines.popitem(last=False)
            waiter = line.popleft()
            self._size -= 1
            if line:
                self._lines[principal] = line
            if not waiter.done():
                return waiter
        return None

    def remove(self, principal: str, waiter: asyncio.Future[int]) -> None:
        """Take out a request that gave up, if it is still here."""
        line = self._lines.get(principal)
        if line is None or waiter not in line:
            return
        line.remove(waiter)
        self._size -= 1
        if not line:
            del self._lines[principal]

    def clear(self) -> list[asyncio.Future[int]]:
        """Everybody, and the queue is empty."""
        everybody = [waiter for line in self._lines.values() for waiter in line]
        self._lines.clear()
        self._size = 0
        return everybody
