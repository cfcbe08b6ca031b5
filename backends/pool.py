"""The backend of every engine that runs here: loads models when they are needed, shares them, frees them.

What may be in memory is decided by `backends.placement`; here it is performed. Rules:

- One load per model at a time; whoever needs the model meanwhile joins it and gets its outcome.
- A load is preceded by the evictions it needs, and waits `room_wait_s` at most for busy models to end.
- A model is in use from the moment somebody waits for it until his generator is closed, and is not evicted
  then. All of that is counted in one place, `_lease`.
- An unload lets running requests finish for `drain_wait_s`, then ends them. New requests wait for it and
  load again.
- A failed load leaves everything else as it was. Its error answers requests for a short while
  (`_backoff_s`), then the next request tries again; `load` tries at once.
- A card's idle time-to-live counts from the end of its last request.
- An engine that ended by itself is replaced without waiting for a request: at once, then with the same back-off where
  the next one does not last either. Until it is back the backend is unhealthy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec
from typing_extensions import override

from backends.base import Backend
from backends.clock import Clock, MonotonicClock
from backends.codec import copy_error
from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import (
    BackendFailed,
    BackendUnavailable,
    Conflict,
    Draining,
    InsufficientMemory,
    ModelNotReady,
    ServiceError,
)
from backends.loader import LoadedModel, ModelLoader
from backends.placement import Evict, Grown, Limits, Load, Reject, State, Tick, Wait, Want, decide
from backends.placement import next_expiry as first_expiry
from backends.residency import Bell, Copy, LoadJob, Row, Ticket
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    Event,
    EventBatch,
    Finished,
    GenerationRequest,
    LoadProgress,
    Prompt,
    Started,
)
from models.errors import ModelError

__all__ = ["Limits", "LoadedModel", "ModelLoader", "PooledBackend"]

log = logging.getLogger(__name__)

MAX_FAILED_KEPT = 64
"""Failed loads whose message is remembered, so that a stream of bad names cannot grow the table."""

STEADY_S = 60.0
"""An engine that served for so long starts a new count of failures."""


class PooledBackend(Backend):
    """Models of one loader in this process.

    `preload`: names to load at `start`. `room_wait_s`: how long a load waits for busy models to leave room.
    `drain_wait_s`: how long an unload lets running requests finish.
    """

    def __init__(
        self,
        loader: ModelLoader,
        *,
        limits: Limits | None = None,
        preload: Sequence[str] = (),
        clock: Clock | None = None,
        room_wait_s: float = 30.0,
        drain_wait_s: float = 30.0,
    ) -> None:
        self.kind = loader.kind
        self._loader = loader
        self._limits = limits or Limits()
        self._preload = tuple(preload)
        self._clock = clock or MonotonicClock()
        self._room_wait_s = room_wait_s
        self._drain_wait_s = drain_wait_s
        self._entries: dict[str, Row] = {}
        self._tickets: dict[str, set[Ticket]] = {}
        self._preload_errors: dict[str, str] = {}
        self._changed = Bell()
        self._housekeeping: asyncio.Task[None] | None = None
        self._wake = Bell()
        self._next_wake: float | None = None
        self._draining = False
        self._closing = False

    @override
    async def start(self) -> None:
        for name in self._preload:
            try:
                entry = self._entry(name)
            except ModelError as error:
                self._preload_errors[name] = error.message
                continue
            entry.preload = True
            if entry.state == "unloaded":
                self._begin_load(entry)
        self._housekeeping = asyncio.create_task(self._keep_house())

    @override
    async def drain(self, timeout_s: float) -> bool:
        self._draining = True
        deadline = self._clock.now() + timeout_s
        while any(entry.in_use for entry in self._entries.values()):
            if not await self._change_before(deadline):
                return False
        return True

    @override
    async def aclose(self) -> None:
        self._draining = self._closing = True
        tasks = [e.job.task for e in self._entries.values() if e.job is not None]
        if self._housekeeping is not None:
            tasks.append(self._housekeeping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        unloads = [
            self._begin_unload(entry, drain=False) if entry.state == "loaded" else entry.unloading
            for entry in self._entries.values()
        ]
        for entry in self._entries.values():
            entry.hurry.ring()
        await asyncio.gather(*[unload for unload in unloads if unload is not None])

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        accepted = self._clock.now()
        async with self._lease(request.model, request.request_id) as model:
            waited_ms = (self._clock.now() - accepted) * 1000
            async with aclosing(model.generate(request)) as batches:
                async for batch in batches:
                    yield batch if waited_ms < 1 else [_waited(event, waited_ms) for event in batch]

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        async with self._lease(request.model, None) as model:
            return await model.embed(request)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        async with self._lease(request.model, None) as model:
            return await model.rerank(request)

    @override
    async def abort(self, request_id: str) -> None:
        for ticket in tuple(self._tickets.get(request_id, ())):
            await ticket.abort(request_id)

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        async with self._lease(model, None) as loaded:
            return await loaded.count_tokens(prompt)

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        async with self._lease(request.model, None) as loaded:
            return await loaded.tokenize(request)

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        async with self._lease(request.model, None) as loaded:
            return await loaded.detokenize(request)

    @asynccontextmanager
    async def _lease(self, name: str, request_id: str | None) -> AsyncIterator[LoadedModel]:
        """The model, loaded, and kept from eviction until the block ends. Raises what `Backend.generate`
        lists."""
        entry = self._entry(name)
        ticket = Ticket()
        if request_id is not None:
            self._tickets.setdefault(request_id, set()).add(ticket)
        try:
            entry.waiting += 1
            try:
                copy = await self._loaded(entry, ticket)
            finally:
                entry.waiting -= 1
                self._changed.ring()
            copy.busy += 1
            ticket.model = copy.model
            try:
                yield copy.model
            finally:
                copy.busy -= 1
                if copy.busy == 0:
                    self._became_idle(entry, copy)
        finally:
            if request_id is not None:
                tickets = self._tickets[request_id]
                tickets.discard(ticket)
                if not tickets:
                    del self._tickets[request_id]

    async def _loaded(self, entry: Row, ticket: Ticket) -> Copy:
        """Wait until the model is in memory, loading it if nobody does."""
        while True:
            if self._draining:
                raise Draining("The service is shutting down", retry_after_s=5)
            match entry.state:
                case "loaded":
                    assert entry.copy is not None
                    if entry.copy.model.failure is None:
                        return entry.copy
                    self._begin_restart(entry, entry.copy)
                case "unloading":
                    assert entry.unloading is not None
                    await ticket.first(entry.unloading)
                case "loading":
                    assert entry.job is not None
                    job = entry.job
                    await ticket.first(job.task)
                    if job.error is not None:
                        raise copy_error(job.error)
                case "unloaded" | "failed":
                    self._check_autoload(entry)
                    self._begin_load(entry)

    def _check_autoload(self, entry: Row) -> None:
        if not entry.card.autoload and not entry.restarting:
            why = f" ({entry.error.message})" if entry.error is not None else ""
            raise ModelNotReady(f"The model {entry.card.id!r} is not loaded and loads on request only{why}")
        if entry.error is not None and self._clock.now() < entry.retry_at:
            raise copy_error(entry.error)

    def _became_idle(self, entry: Row, copy: Copy) -> None:
        copy.last_used = self._clock.now()
        copy.idle.ring()
        self._changed.ring()
        if copy.model.failure is not None:
            self._wake.ring()
        ttl = entry.card.idle_ttl_s
        if ttl is not None and (self._next_wake is None or copy.last_used + ttl < self._next_wake):
            self._wake.ring()

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        while True:
            entry = self._entry(model)
            if self._draining:
                raise Draining("The service is shutting down", retry_after_s=5)
            if entry.state == "loaded":
                if entry.copy is not None and entry.copy.model.failure is None:
                    size = entry.size_bytes
                    yield LoadProgress("ready", size, size)
                    return
                assert entry.copy is not None
                self._begin_restart(entry, entry.copy)
            if entry.state == "unloading" and entry.unloading is not None:
                yield LoadProgress("waiting")
                await asyncio.wait({entry.unloading})
                continue
            job = entry.job or self._begin_load(entry)
            told: LoadProgress | None = None
            while not job.task.done():
                if job.progress is told:
                    await job.moved.wait()
                else:
                    told = job.progress
                    yield told
            if job.error is not None:
                raise copy_error(job.error)

    @override
    async def unload(self, model: str) -> None:
        entry = self._entry(model)
        if entry.state == "loading":
            raise Conflict(f"The model {entry.card.id!r} is being loaded", param="model", retry_after_s=5)
        entry.restarting = False
        if entry.state == "loaded":
            self._begin_unload(entry, drain=True)
        entry.released = True
        if entry.unloading is not None:
            await asyncio.wait({entry.unloading})
        elif entry.state == "failed":
            entry.state, entry.error = "unloaded", None
        self._forget(entry)

    def _begin_load(self, entry: Row) -> LoadJob:
        job = LoadJob()
        entry.state, entry.job, entry.released = "loading", job, False
        job.task = asyncio.create_task(self._load(entry, job))
        job.task.add_done_callback(lambda _: job.moved.ring())
        return job

    async def _load(self, entry: Row, job: LoadJob) -> None:
        """The task of one load. It raises nothing: its outcome is in `job.error` and in the entry."""
        loop = asyncio.get_running_loop()
        copy: Copy | None = None

        def report(step: LoadProgress) -> None:
            loop.call_soon_threadsafe(job.report, step)

        try:
            size = await asyncio.to_thread(self._loader.estimate_bytes, entry.card)
            await self._make_room(entry, size)
            model = await self._loader.load(entry.card, report)
            copy = Copy(model, self._clock.now())
        except asyncio.CancelledError:
            job.error = Draining("The service is shutting down", retry_after_s=5)
        except (ServiceError, ModelError) as error:
            job.error = error
        except Exception:
            log.exception("loading %s failed", entry.card.id)
            job.error = BackendFailed(f"Loading the model {entry.card.id!r} failed")
        entry.job = None
        if copy is None:
            self._load_failed(entry, job)
        else:
            entry.state, entry.copy, entry.error, entry.failures = "loaded", copy, None, 0
            entry.size_bytes = copy.model.memory_bytes
            entry.loaded_once, entry.restarting = True, False
            copy.model.watch(self._wake.ring)
            self._evict(decide(Grown(entry.card.id), self._state()))
        self._changed.ring()
        self._wake.ring()

    def _load_failed(self, entry: Row, job: LoadJob) -> None:
        entry.state, entry.error = "failed", job.error
        entry.reserved, entry.size_bytes = False, 0
        entry.retry_at = self._clock.now() + _backoff_s(entry.failures)
        entry.failures += 1
        failed = [
            e for e in self._entries.values() if e.state == "failed" and not e.preload and not e.restarting
        ]
        for old in sorted(failed, key=lambda e: e.retry_at)[:-MAX_FAILED_KEPT]:
            old.state = "unloaded"
            self._forget(old)

    async def _make_room(self, entry: Row, size: int) -> None:
        """Reserve `size` bytes for the entry, after the evictions and the waiting that takes."""
        deadline = self._clock.now() + self._room_wait_s
        while True:
            match decide(Want(entry.card.id, size), self._state()):
                case Load():
                    entry.reserved, entry.size_bytes = True, size
                    return
                case Reject():
                    raise InsufficientMemory(
                        f"The model {entry.card.id!r} needs {_gib(size)}; "
                        f"the memory for models is {_gib(self._limits.budget_bytes or 0)}",
                        param="model",
                    )
                case Evict() as decision:
                    await asyncio.wait(self._evict(decision))
                case Wait():
                    if not await self._change_before(deadline):
                        used = sum(r.size_bytes for r in self._state().residents)
                        raise InsufficientMemory(
                            f"The model {entry.card.id!r} ({_gib(size)}) does not fit beside "
                            f"the models in use ({_gib(used)})",
                            param="model",
                            retry_after_s=10,
                        )

    def _evict(self, decision: object) -> list[asyncio.Task[None]]:
        ids = decision.ids if isinstance(decision, Evict) else ()
        tasks = []
        for model_id in ids:
            log.info("evicting %s", model_id)
            self._entries[model_id].released, self._entries[model_id].restarting = True, False
            tasks.append(self._begin_unload(self._entries[model_id], drain=False))
        return tasks

    def _begin_restart(self, entry: Row, copy: Copy) -> None:
        """Free what an engine that ended by itself left; `_unload` then leaves the row to be loaded again."""
        if not self._draining:
            steady = self._clock.now() - copy.since >= STEADY_S
            entry.crashes = 1 if steady else entry.crashes + 1
            entry.restarting = True
            log.warning("restarting %s (failure %d): %s", entry.card.id, entry.crashes, copy.model.failure)
        self._begin_unload(entry, drain=False)

    def _begin_unload(self, entry: Row, *, drain: bool) -> asyncio.Task[None]:
        assert entry.copy is not None
        entry.state = "unloading"
        entry.unloading = asyncio.create_task(self._unload(entry, entry.copy, drain=drain))
        return entry.unloading

    async def _unload(self, entry: Row, copy: Copy, *, drain: bool) -> None:
        """The task of one unload. It raises nothing."""
        if drain and copy.busy and not self._closing:
            await self._any_of(copy.idle.future(), entry.hurry.future(), within_s=self._drain_wait_s)
        try:
            await copy.model.aclose()
        except Exception:
            log.exception("closing %s failed; its memory may not be free", entry.card.id)
        entry.copy = entry.unloading = None
        entry.reserved, entry.size_bytes = False, 0
        entry.state = "unloaded"
        if entry.restarting:
            entry.state = "failed"
            why = copy.model.failure or f"The engine of {entry.card.id!r} failed"
            entry.error = BackendUnavailable(f"{why}; it is being restarted", retry_after_s=5)
            wait_s = _backoff_s(entry.crashes - 2) if entry.crashes > 1 else 0.0
            entry.retry_at = self._clock.now() + wait_s
            self._wake.ring()
        self._forget(entry)
        self._changed.ring()

    async def _keep_house(self) -> None:
        """Unload what idled too long, bring back what failed by itself, and try failed preloads again."""
        while True:
            now = self._clock.now()
            self._evict(decide(Tick(now), self._state()))
            for entry in tuple(self._entries.values()):
                if entry.state == "loaded" and entry.copy is not None and entry.engine_failed:
                    self._begin_restart(entry, entry.copy)
            failed = [
                e for e in self._entries.values() if e.state == "failed" and (e.preload or e.restarting)
            ]
            for entry in failed:
                if entry.retry_at <= now and not self._draining:
                    self._begin_load(entry)
            times = [e.retry_at for e in failed if e.retry_at > now]
            expiry = first_expiry(self._state().residents)
            if expiry is not None:
                times.append(expiry)
            self._next_wake = min(times, default=None)
            woken = self._wake.future()
            within = None if self._next_wake is None else self._next_wake - now
            await self._any_of(woken, within_s=within)

    async def _change_before(self, deadline: float) -> bool:
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

    @override
    async def health(self) -> BackendHealth:
        statuses = tuple(entry.status() for entry in self._entries.values())
        problems = list(self._preload_errors.values())
        for entry in self._entries.values():
            if problem := entry.problem():
                problems.append(problem)
            if entry.engine_failed:
                self._wake.ring()
        return BackendHealth(healthy=not problems, message="; ".join(problems) or None, models=statuses)

    @override
    async def metrics(self) -> bytes:
        models = [entry.copy.model for entry in self._entries.values() if entry.copy is not None]
        return b"".join(await asyncio.gather(*[model.metrics() for model in models]))

    def _entry(self, name: str) -> Row:
        """By id without looking at the disk when the model is known here; else by the catalogue, aliases
        included."""
        if (entry := self._entries.get(name)) is not None and entry.state not in ("unloaded", "failed"):
            return entry
        card = self._loader.resolve(name)
        entry = self._entries.get(card.id)
        if entry is None:
            entry = self._entries[card.id] = Row(card)
        elif entry.state in ("unloaded", "failed"):
            entry.card = card
        return entry

    def _forget(self, entry: Row) -> None:
        """Drop the row of a model that is not in memory and of which nothing is to be remembered."""
        known = self._entries.get(entry.card.id) is entry
        if known and entry.state == "unloaded" and not entry.preload and not entry.waiting:
            del self._entries[entry.card.id]

    def _state(self) -> State:
        return State([e.resident() for e in self._entries.values() if e.reserved], self._limits)


def _waited(event: Event, waited_ms: float) -> Event:
    """The event with the wait for the model counted as waiting for a slot."""
    if isinstance(event, Started | Finished):
        return msgspec.structs.replace(event, queue_ms=event.queue_ms + waited_ms)
    return event


def _backoff_s(failures: int) -> float:
    """Half a second after the first failure, doubling to ten."""
    return min(10.0, 0.5 * 2.0 ** min(failures, 10))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
