"""The pool's rows: what it knows of one card, of a model in memory, of a load under way and of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.errors import BackendFailed, ServiceError
from backends.loader import LoadedModel
from backends.placement import Resident
from backends.types import LoadProgress, ModelState, ModelStatus
from models.errors import ModelError

if TYPE_CHECKING:
    from models.card import ModelCard


class Bell:
    """Wakes everybody who waits, once per ring; a ring that nobody waits for costs nothing and is not
    kept."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def future(self) -> asyncio.Future[None]:
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    async def wait(self) -> None:
        await asyncio.wait({self.future()})

    def ring(self) -> None:
        if self._future is not None:
            self._future.set_result(None)
            self._future = None


class Copy:
    """A model in memory and who uses it."""

    __slots__ = ("busy", "idle", "last_used", "model", "since")

    def __init__(self, model: LoadedModel, now: float) -> None:
        self.model = model
        self.since = now
        self.busy = 0
        self.last_used = now
        self.idle = Bell()


class LoadJob:
    """One load under way."""

    __slots__ = ("error", "moved", "progress", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.progress = LoadProgress("waiting")
        self.moved = Bell()
        self.error: ServiceError | ModelError | None = None

    def report(self, step: LoadProgress) -> None:
        if step.phase != "ready":  # that is said when the pool has the model
            self.progress = step
            self.moved.ring()


class Row:
    """What the pool knows of one card."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.state: ModelState = "unloaded"
        self.copy: Copy | None = None
        self.job: LoadJob | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.hurry = Bell()
        self.waiting = 0
        self.reserved = False
        self.size_bytes = 0
        self.error: ServiceError | ModelError | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.preload = False
        self.loaded_once = False
        self.released = False
        """Unloaded on request or evicted: its absence is no fault."""
        self.restarting = False
        """Its engine ended by itself, and it is on its way back into memory."""
        self.crashes = 0
        """How often that happened in short succession."""

    @property
    def in_use(self) -> int:
        return self.waiting + (self.copy.busy if self.copy is not None else 0)

    def resident(self) -> Resident:
        return Resident(
            id=self.card.id,
            size_bytes=self.size_bytes,
            state=self.state if self.state in ("loading", "unloading") else "loaded",
            busy=self.in_use,
            last_used=self.copy.last_used if self.copy is not None else 0.0,
            idle_ttl_s=self.card.idle_ttl_s,
            preload=self.preload,
        )

    def status(self) -> ModelStatus:
        model = self.copy.model if self.copy is not None else None
        failure = model.failure if model is not None else None
        return ModelStatus(
            id=self.card.id,
            state="failed" if failure is not None else self.state,
            context_length=model.context_length if model is not None else self.card.context_length,
            message=failure or (self.error.message if self.error is not None else None),
            running=model.running if model is not None else 0,
            waiting=self.waiting + (model.waiting if model is not None else 0),
        )

    @property
    def engine_failed(self) -> bool:
        return self.copy is not None and self.copy.model.failure is not None

    def problem(self) -> str | None:
        """Why this card makes the backend unhealthy: its engine ended by itself, or it is to be there from the start
        and is not."""
        if not (self.preload or self.restarting or self.engine_failed):
            return None
        status = self.status()
        if status.state == "failed":
            return f"{status.id}: {status.message}"
        if self.restarting:
            return f"{status.id} is being restarted"
        if self.loaded_once or self.released:
            return None
        return f"{status.id} is being loaded" if status.state == "loading" else f"{status.id} is not loaded"


class Ticket:
    """One request on its way through the pool, for `abort`."""

    __slots__ = ("_aborted", "model")

    def __init__(self) -> None:
        self.model: LoadedModel | None = None
        self._aborted: asyncio.Future[None] | None = None

    async def first(self, task: asyncio.Task[None]) -> None:
        """Wait for the task without being able to end it. Raises: BackendFailed when the request is
        aborted."""
        if self._aborted is None:
            self._aborted = asyncio.get_running_loop().create_future()
        await asyncio.wait({task, self._aborted}, return_when=asyncio.FIRST_COMPLETED)
        if self._aborted.done():
            raise BackendFailed("The request was aborted")

    async def abort(self, request_id: str) -> None:
        if self.model is not None:
            await self.model.abort(request_id)
        elif self._aborted is not None and not self._aborted.done():
            self._aborted.set_result(None)
