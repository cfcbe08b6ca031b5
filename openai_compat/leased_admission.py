"""Admission whose slots are leases that all replicas share.

    Redis grants a lease        run
    all leases are held         wait, if there is a place in the queue, as `admission` says
    Redis is away               what `admission` says of this replica alone, those that run counted

Who waits here waits in this process's fair queue, and one task asks Redis for the queue's next slot: when one was given
back here, else every `poll_s`. Among replicas whoever asks first is first.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, Final

from typing_extensions import override

from openai_compat.admission import Admission, Slot, SlotStore
from openai_compat.budgets import StoreUnavailable
from openai_compat.errors import TooManyAtOnce
from openai_compat.redis_limits import FIRST_LEASE, RedisLeases

POLL_S: Final = 0.05


class LeasedAdmission(Admission):
    """`leases` hold the slots, as `slots:KIND`, and `queue_size` places of all replicas together. The stores of the
    parent count while Redis is away."""

    def __init__(
        self, slots: SlotStore, *, leases: RedisLeases, kind: str, queue_size: int = 0, **parts: Any
    ) -> None:
        super().__init__(slots, **parts)
        self._leases = leases
        self._kind = kind
        self._queue_size = queue_size
        self._freed = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    @override
    async def _enter(self, slot: Slot) -> None:
        if slot.limit is not None:
            # Here as well: while Redis is away, this is what is left of the limit.
            slot._own = self._take_own(slot.principal, slot.limit)
        try:
            if slot.limit is not None:
                await self._lease_own(slot, slot.limit)
            slot._number, slot._started_at, slot.queue_ms = await self._obtain(slot.principal)
        except BaseException:
            self._leave(slot)
            raise

    @override
    def _leave(self, slot: Slot) -> None:
        super()._leave(slot)
        lease, slot._own_lease = slot._own_lease, None
        if lease is not None:
            self._leases.release(lease)

    async def _lease_own(self, slot: Slot, limit: int) -> None:
        try:
            slot._own_lease = await self._leases.acquire(f"own:{slot.principal}", limit)
        except StoreUnavailable:
            return
        if slot._own_lease is None:
            raise TooManyAtOnce(limit, retry_after_s=self.retry_after_s)

    @override
    async def _obtain(self, principal: str) -> tuple[int, float, float]:
        if self._draining:
            raise self._refusal()
        since = self._clock()
        if not self._queue:  # whoever waits goes first
            number = await self._ask_for_slot()
            if number is not None and self.draining:  # meanwhile
                self._give(number)
                raise self._refusal()
            if number is not None:
                self._changed()
                return number, self._clock(), 0.0
        if self._places is None:
            raise self._refusal()
        place = await self._ask_for_place(self._places)
        if place is None:
            raise self._refusal()
        try:
            if self.draining:
                raise self._refusal()
            number = await self._wait(principal)
            now = self._clock()
            return number, now, max(0.0, now - since) * 1000.0
        finally:
            self._give_place(self._places, place)

    async def _ask_for_slot(self) -> int | None:
        """A lease, or a slot of this replica alone while there are no leases; it counts as running."""
        try:
            number = await self._leases.acquire(f"slots:{self._kind}", self._num_slots)
        except StoreUnavailable:
            return self._take() if self._running < self._num_slots else None
        if number is not None:
            self._running += 1
        return number

    async def _ask_for_place(self, places: SlotStore) -> int | None:
        try:
            return await self._leases.acquire(f"places:{self._kind}", self._queue_size)
        except StoreUnavailable:
            return places.try_acquire()

    def _give_place(self, places: SlotStore, number: int) -> None:
        if number >= FIRST_LEASE:
            self._leases.release(number)
        else:
            places.release(number)

    @override
    def _free(self, number: int) -> None:
        if number < FIRST_LEASE:
            super()._free(number)
            self._freed.set()
            return
        releasing = self._leases.release(number)
        if releasing is not None:
            releasing.add_done_callback(lambda _: self._freed.set())

    @override
    def _pump(self) -> None:
        """Nobody is served here: the asking task does it."""

    @override
    def _arm(self) -> None:
        if self._queue and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_for_queue())

    async def _ask_for_queue(self) -> None:
        while self._queue:
            self._freed.clear()
            number = await self._ask_for_slot()
            if number is None:
                await self._pause()
                continue
            waiter = self._queue.pop()
            if waiter is None:
                self._give(number)
            else:
                waiter.set_result(number)

    async def _pause(self) -> None:
        """Until a slot was given back here, or one may have been elsewhere. The replicas spread their questions."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S * random.uniform(0.5, 1.5)):
                await self._freed.wait()
