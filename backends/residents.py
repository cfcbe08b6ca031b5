"""The models in memory: what `backends.placement` decides, performed.

- One load per model at a time; whoever needs the model meanwhile joins it and gets its outcome.
- A load is preceded by the evictions it needs, and waits `room_wait_s` at most for busy models to end.
- An unload lets running requests finish for `drain_wait_s`, then ends them. New requests wait for it and
  load again.
- A failed load leaves everything else as it was. Its error answers requests for a short while
  (`_backoff_s`), then the next request tries again.
- A card's idle time-to-live counts from the end of its last request.
- An engine that ended by itself is replaced without waiting for a request: at once, then with the same back-off where
  the next one does not last either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from backends.clock import Clock
from backends.codec import copy_error
from backends.errors import (
    BackendFailed,
    BackendUnavailable,
    Draining,
    InsufficientMemory,
    ModelNotReady,
    ServiceError,
)
from backends.loader import LoadedModel, ModelLoader
from backends.placement import Evict, Grown, Limits, Load, Reject, State, Tick, Wait, Want, decide
from backends.placement import next_expiry as first_expiry
from backends.residency import Bell, Copy, LoadJob, Row, Ticket
from backends.types import LoadProgress
from models.errors import ModelError

log = logging.getLogger(__name__)

MAX_FAILED_KEPT = 64
"""Failed loads whose message is remembered, so that a stream of bad names cannot grow the table."""

HOUSEKEEPING_RETRY_S = 1.0
STEADY_S = 60.0
"""An engine that served for so long starts a new count of failures."""


class Residents:
    """The rows of one loader's models, and every change of what is in memory. For the event loop's thread.

    `room_wait_s`: how long a load waits for busy models to leave room. `drain_wait_s`: how long an unload lets
    running requests finish.
    """

    def __init__(
        self, loader: ModelLoader, limits: Limits, clock: Clock, *, room_wait_s: float, drain_wait_s: float
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.is_draining = False
        self._loader = loader
        self._limits = limits
        self._clock = clock
        self._room_wait_s = room_wait_s
        self._drain_wait_s = drain_wait_s
        self._changed = Bell()
        self._housekeeping: asyncio.Task[None] | None = None
        self._wake = Bell()
        self._next_wake: float | None = None
        self._closing = False

    def start(self, preload: Sequence[str]) -> dict[str, str]:
        """Begin to load `preload` and to keep house. Gives the names that mean no model, and why."""
        errors: dict[str, str] = {}
        for name in preload:
            try:
                row = self.row(name)
            except ModelError as error:
                errors[name] = error.message
                continue
            row.preload = True
            if row.state == "unloaded":
                self.begin_load(row)
        self._housekeeping = asyncio.create_task(self._keep_house())
        return errors

    async def aclose(self) -> None:
        """Cancel the loads, close every model, and wait for that."""
        self.is_draining = self._closing = True
        tasks = [row.job.task for row in self.rows.values() if row.job is not None]
        if self._housekeeping is not None:
            tasks.append(self._housekeeping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        unloads = [
            self.begin_unload(row, drain=False) if row.state == "loaded" else row.unloading
            for row in self.rows.values()
        ]
        for row in self.rows.values():
            row.hurry.ring()
        await asyncio.gather(*[unload for unload in unloads if unload is not None])

    @asynccontextmanager
    async def lease(self, name: str, ticket: Ticket | None = None) -> AsyncIterator[LoadedModel]:
        """The model, loaded, and kept from eviction until the block ends. A model is in use from the moment somebody
        waits for it; all of that is counted here. Raises what `Backend.generate` lists."""
        ticket = ticket or Ticket()
        row = self.row(name)
        row.waiting += 1
        try:
            copy = await self._loaded(row, ticket)
        finally:
            row.waiting -= 1
            self._changed.ring()
        copy.busy += 1
        ticket.model = copy.model
        try:
            yield copy.model
        finally:
            copy.busy -= 1
            if copy.busy == 0:
                self._became_idle(row, copy)

    async def _loaded(self, row: Row, ticket: Ticket) -> Copy:
        """Wait until the model is in memory, loading it if nobody does."""
        while True:
            if self.is_draining:
                raise Draining("The service is shutting down", retry_after_s=5)
            match row.state:
                case "loaded":
                    assert row.copy is not None
                    if row.copy.model.failure is None:
                        return row.copy
                    self.begin_restart(row, row.copy)
                case "unloading":
                    assert row.unloading is not None
                    await ticket.first(row.unloading)
                case "loading":
                    assert row.job is not None
                    job = row.job
                    await ticket.first(job.task)
                    if job.error is not None:
                        raise copy_error(job.error)
                case "unloaded" | "failed":
                    self._check_autoload(row)
                    self.begin_load(row)

    def _check_autoload(self, row: Row) -> None:
        if not row.card.autoload and not row.restarting:
            why = f" ({row.error.message})" if row.error is not None else ""
            raise ModelNotReady(f"The model {row.card.id!r} is not loaded and loads on request only{why}")
        if row.error is not None and self._clock.now() < row.retry_at:
            raise copy_error(row.error)

    def _became_idle(self, row: Row, copy: Copy) -> None:
        copy.last_used = self._clock.now()
        copy.idle.ring()
        self._changed.ring()
        if copy.model.failure is not None:
            self._wake.ring()
        ttl = row.card.idle_ttl_s
        if ttl is not None and (self._next_wake is None or copy.last_used + ttl < self._next_wake):
            self._wake.ring()

    def begin_load(self, row: Row) -> LoadJob:
        job = LoadJob()
        row.state, row.job, row.released = "loading", job, False
        job.task = asyncio.create_task(self._load(row, job))
        job.task.add_done_callback(lambda _: job.moved.ring())
        return job

    async def _load(self, row: Row, job: LoadJob) -> None:
        """The task of one load. It raises nothing: its outcome is in `job.error` and in the row."""
        loop = asyncio.get_running_loop()
        copy: Copy | None = None

        def report(step: LoadProgress) -> None:
            loop.call_soon_threadsafe(job.report, step)

        try:
            size = await asyncio.to_thread(self._loader.estimate_bytes, row.card)
            await self._make_room(row, size)
            model = await self._loader.load(row.card, report)
            copy = Copy(model, self._clock.now())
        except asyncio.CancelledError:
            job.error = Draining("The service is shutting down", retry_after_s=5)
        except (ServiceError, ModelError) as error:
            job.error = error
        except Exception:
            log.exception("loading %s failed", row.card.id)
            job.error = BackendFailed(f"Loading the model {row.card.id!r} failed")
        row.job = None
        if copy is None:
            self._load_failed(row, job)
        else:
            row.state, row.copy, row.error, row.failures = "loaded", copy, None, 0
            row.size_bytes = copy.model.memory_bytes
            row.loaded_once, row.restarting = True, False
            copy.model.watch(self._wake.ring)
            self._evict(decide(Grown(row.card.id), self._state()))
        self._changed.ring()
        self._wake.ring()

    def _load_failed(self, row: Row, job: LoadJob) -> None:
        row.state, row.error = "failed", job.error
        row.reserved, row.size_bytes = False, 0
        row.retry_at = self._clock.now() + _backoff_s(row.failures)
        row.failures += 1
        failed = [e for e in self.rows.values() if e.state == "failed" and not e.preload and not e.restarting]
        for old in sorted(failed, key=lambda e: e.retry_at)[:-MAX_FAILED_KEPT]:
            old.state = "unloaded"
            self.forget(old)

    async def _make_room(self, row: Row, size: int) -> None:
        """Reserve `size` bytes for the row, after the evictions and the waiting that takes."""
        deadline = self._clock.now() + self._room_wait_s
        while True:
            match decide(Want(row.card.id, size), self._state()):
                case Load():
                    row.reserved, row.size_bytes = True, size
                    return
                case Reject():
                    raise InsufficientMemory(
                        f"The model {row.card.id!r} needs {_gib(size)}; "
                        f"the memory for models is {_gib(self._limits.budget_bytes or 0)}",
                        param="model",
                    )
                case Evict() as decision:
                    await asyncio.wait(self._evict(decision))
                case Wait():
                    if not await self.change_before(deadline):
                        used = sum(r.size_bytes for r in self._state().residents)
                        raise InsufficientMemory(
                            f"The model {row.card.id!r} ({_gib(size)}) does not fit beside "
                            f"the models in use ({_gib(used)})",
                            param="model",
                            retry_after_s=10,
                        )

    def _evict(self, decision: object) -> list[asyncio.Task[None]]:
        ids = decision.ids if isinstance(decision, Evict) else ()
        tasks = []
        for model_id in ids:
            log.info("evicting %s", model_id)
            self.rows[model_id].released, self.rows[model_id].restarting = True, False
            tasks.append(self.begin_unload(self.rows[model_id], drain=False))
        return tasks

    def begin_restart(self, row: Row, copy: Copy) -> None:
        """Free what an engine that ended by itself left; `_unload` then leaves the row to be loaded again."""
        if not self.is_draining:
            steady = self._clock.now() - copy.since >= STEADY_S
            row.crashes = 1 if steady else row.crashes + 1
            row.restarting = True
            log.warning("restarting %s (failure %d): %s", row.card.id, row.crashes, copy.model.failure)
        self.begin_unload(row, drain=False)

    def begin_unload(self, row: Row, *, drain: bool) -> asyncio.Task[None]:
        assert row.copy is not None
        row.state = "unloading"
        row.unloading = asyncio.create_task(self._unload(row, row.copy, drain=drain))
        return row.unloading

    async def _unload(self, row: Row, copy: Copy, *, drain: bool) -> None:
        """The task of one unload. It raises nothing."""
        if drain and copy.busy and not self._closing:
            await self._any_of(copy.idle.future(), row.hurry.future(), within_s=self._drain_wait_s)
        try:
            await copy.model.aclose()
        except Exception:
            log.exception("closing %s failed; its memory may not be free", row.card.id)
        row.copy = row.unloading = None
        row.reserved, row.size_bytes = False, 0
        row.state = "unloaded"
        if row.restarting:
            row.state = "failed"
            why = copy.model.failure or f"The engine of {row.card.id!r} failed"
            row.error = BackendUnavailable(f"{why}; it is being restarted", retry_after_s=5)
            wait_s = _backoff_s(row.crashes - 2) if row.crashes > 1 else 0.0
            row.retry_at = self._clock.now() + wait_s
            self._wake.ring()
        self.forget(row)
        self._changed.ring()

    def keep_house(self) -> None:
        """Look soon whether there is something to unload or to bring back."""
        self._wake.ring()

    async def _keep_house(self) -> None:
        while True:
            try:
                within = self._tidy_up()
            except Exception:
                # Without it no engine would come back, and nobody would know why.
                log.exception("looking after the models failed; it is tried again")
                within = HOUSEKEEPING_RETRY_S
            await self._any_of(self._wake.future(), within_s=within)

    def _tidy_up(self) -> float | None:
        """Unload what idled too long, bring back what failed by itself, and try failed preloads again.

        Gives the seconds until there is something to do again; None: not before something happens.
        """
        now = self._clock.now()
        self._evict(decide(Tick(now), self._state()))
        for row in tuple(self.rows.values()):
            if row.state == "loaded" and row.copy is not None and row.engine_failed:
                self.begin_restart(row, row.copy)
        failed = [
            row for row in self.rows.values() if row.state == "failed" and (row.preload or row.restarting)
        ]
        for row in failed:
            if row.retry_at <= now and not self.is_draining:
                self.begin_load(row)
        times = [row.retry_at for row in failed if row.retry_at > now]
        expiry = first_expiry(self._state().residents)
        if expiry is not None:
            times.append(expiry)
        self._next_wake = min(times, default=None)
        return None if self._next_wake is None else self._next_wake - now

    async def change_before(self, deadline: float) -> bool:
        """Wait for any change of what is in memory or in use; False once the deadline has passed."""
        left = deadline - self._clock.now()
        return left > 0 and await self._any_of(self._changed.future(), within_s=left)

    async def _any_of(self, *futures: asyncio.Future[None], within_s: float | None) -> bool:
        """Wait for one of the futures; whether one came before the time was over."""
        sleep = None if within_s is None else asyncio.ensure_future(self._clock.sleep(within_s))
        try:
            await asyncio.wait(
                {*futures, *([] if sleep is None else [sleep])}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if sleep is not None:
                sleep.cancel()
        return any(future.done() for future in futures)

    def row(self, name: str) -> Row:
        """By id without looking at the disk when the model is known here; else by the catalogue, aliases
        included."""
        if (row := self.rows.get(name)) is not None and row.state not in ("unloaded", "failed"):
            return row
        card = self._loader.resolve(name)
        row = self.rows.get(card.id)
        if row is None:
            row = self.rows[card.id] = Row(card)
        elif row.state in ("unloaded", "failed"):
            row.card = card
        return row

    def forget(self, row: Row) -> None:
        """Drop the row of a model that is not in memory and of which nothing is to be remembered."""
        known = self.rows.get(row.card.id) is row
        if known and row.state == "unloaded" and not row.preload and not row.waiting:
            del self.rows[row.card.id]

    def _state(self) -> State:
        return State([e.resident() for e in self.rows.values() if e.reserved], self._limits)


def _backoff_s(failures: int) -> float:
    """Half a second after the first failure, doubling to ten."""
    return min(10.0, 0.5 * 2.0 ** min(failures, 10))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
