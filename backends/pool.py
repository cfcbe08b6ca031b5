"""The backend of every engine that runs here: loads models when they are needed, shares them, frees them.

What may be in memory is decided by `backends.placement` and performed by `backends.residents`; here are the requests:
each one leases its model for as long as its generator is open, and can be aborted wherever it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec
from typing_extensions import override

from backends.base import Backend
from backends.clock import Clock, MonotonicClock
from backends.codec import copy_error
from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import (
    Conflict,
    Draining,
)
from backends.loader import LoadedModel, ModelLoader
from backends.placement import Limits
from backends.residency import Ticket
from backends.residents import Residents
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

__all__ = ["Limits", "LoadedModel", "ModelLoader", "PooledBackend"]


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
        self._preload = tuple(preload)
        self._clock = clock or MonotonicClock()
        self._residents = Residents(
            loader, limits or Limits(), self._clock, room_wait_s=room_wait_s, drain_wait_s=drain_wait_s
        )
        self._tickets: dict[str, set[Ticket]] = {}
        self._preload_errors: dict[str, str] = {}

    @override
    async def start(self) -> None:
        self._preload_errors = self._residents.start(self._preload)

    @override
    async def drain(self, timeout_s: float) -> bool:
        self._residents.is_draining = True
        deadline = self._clock.now() + timeout_s
        while any(row.in_use for row in self._residents.rows.values()):
            if not await self._residents.change_before(deadline):
                return False
        return True

    @override
    async def aclose(self) -> None:
        await self._residents.aclose()

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        accepted = self._clock.now()
        async with self._lease(request) as model:
            waited_ms = (self._clock.now() - accepted) * 1000
            async with aclosing(model.generate(request)) as batches:
                async for batch in batches:
                    yield batch if waited_ms < 1 else [_waited(event, waited_ms) for event in batch]

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        async with self._residents.lease(request.model) as model:
            return await model.embed(request)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        async with self._residents.lease(request.model) as model:
            return await model.rerank(request)

    @override
    async def abort(self, request_id: str) -> None:
        for ticket in tuple(self._tickets.get(request_id, ())):
            await ticket.abort(request_id)

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        async with self._residents.lease(model) as loaded:
            return await loaded.count_tokens(prompt)

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        async with self._residents.lease(request.model) as loaded:
            return await loaded.tokenize(request)

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        async with self._residents.lease(request.model) as loaded:
            return await loaded.detokenize(request)

    @asynccontextmanager
    async def _lease(self, request: GenerationRequest) -> AsyncIterator[LoadedModel]:
        """The request's model; `abort` finds the request from here on."""
        ticket = Ticket()
        self._tickets.setdefault(request.request_id, set()).add(ticket)
        try:
            async with self._residents.lease(request.model, ticket) as model:
                yield model
        finally:
            tickets = self._tickets[request.request_id]
            tickets.discard(ticket)
            if not tickets:
                del self._tickets[request.request_id]

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        residents = self._residents
        while True:
            row = residents.row(model)
            if residents.is_draining:
                raise Draining("The service is shutting down", retry_after_s=5)
            if row.state == "loaded":
                if row.copy is not None and row.copy.model.failure is None:
                    size = row.size_bytes
                    yield LoadProgress("ready", size, size)
                    return
                assert row.copy is not None
                residents.begin_restart(row, row.copy)
            if row.state == "unloading" and row.unloading is not None:
                yield LoadProgress("waiting")
                await asyncio.wait({row.unloading})
                continue
            job = row.job or residents.begin_load(row)
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
        residents = self._residents
        row = residents.row(model)
        if row.state == "loading":
            raise Conflict(f"The model {row.card.id!r} is being loaded", param="model", retry_after_s=5)
        row.restarting = False
        if row.state == "loaded":
            residents.begin_unload(row, drain=True)
        row.released = True
        if row.unloading is not None:
            await asyncio.wait({row.unloading})
        elif row.state == "failed":
            row.state, row.error = "unloaded", None
        residents.forget(row)

    @override
    async def health(self) -> BackendHealth:
        statuses = tuple(row.status() for row in self._residents.rows.values())
        problems = list(self._preload_errors.values())
        for row in self._residents.rows.values():
            if problem := row.problem():
                problems.append(problem)
            if row.engine_failed:
                self._residents.keep_house()
        return BackendHealth(healthy=not problems, message="; ".join(problems) or None, models=statuses)

    @override
    async def metrics(self) -> bytes:
        models = [row.copy.model for row in self._residents.rows.values() if row.copy is not None]
        return b"".join(await asyncio.gather(*[model.metrics() for model in models]))


def _waited(event: Event, waited_ms: float) -> Event:
    """The event with the wait for the model counted as waiting for a slot."""
    if isinstance(event, Started | Finished):
        return msgspec.structs.replace(event, queue_ms=event.queue_ms + waited_ms)
    return event
