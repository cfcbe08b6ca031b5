"""Several runners behind one name, seen as one Backend: a headless service of Kubernetes, replicas of one in compose.

Every address that the name resolves to is one runner. A request goes to the least busy one; one that was not answered
goes to another. Loads and unloads go to all of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlsplit

from typing_extensions import override

from backends.base import Backend
from backends.clock import Clock, MonotonicClock
from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import BackendError, BackendUnavailable, Draining, Overloaded
from backends.runner.exposition import labelled
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    EventBatch,
    Feature,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
)

T = TypeVar("T")
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

RESOLVE_S: Final = 2.0
"""How old an answer of the resolver may be: a runner that was added gets requests this soon."""
RESOLVE_TIMEOUT_S: Final = 5.0
REST_S: Final = 1.0
"""How long a runner that could not take a request is left alone while there are others."""
RETRY_AFTER_S: Final = 2.0
ELSEWHERE: Final = (BackendUnavailable, Draining, Overloaded)
"""What another runner may do better. Nothing has been generated when they come before the first event."""

log = logging.getLogger("llm.runner")


async def addresses(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says, IPv6 addresses in brackets. Raises: OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    names = {str(address[0]): family for family, _, _, _, address in found}
    return sorted(f"[{name}]" if family == socket.AF_INET6 else name for name, family in names.items())


@dataclass(eq=False, slots=True)
class _Replica:
    backend: Backend
    running: int = 0
    rests_until: float = 0.0


class RunnerReplicas(Backend):
    """`url`: `http://host:port`. `connect` makes the client of one address's url. A name that resolves to nothing, or
    not at all, is a backend that is not available; one that cannot be resolved for a while keeps the runners it had."""

    def __init__(
        self,
        kind: str,
        url: str,
        connect: Callable[[str], Backend],
        *,
        features: frozenset[Feature] = frozenset(),
        resolve: Resolve = addresses,
        clock: Clock | None = None,
    ) -> None:
        self.kind = kind
        self.features = features
        parts = urlsplit(url)
        self._scheme = parts.scheme
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._connect = connect
        self._resolve = resolve
        self._clock = clock or MonotonicClock()
        self._replicas: dict[str, _Replica] = {}
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._turn = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @override
    async def start(self) -> None:
        """Nothing to do: the name is resolved when the first request comes."""

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        tried: set[_Replica] = set()
        while True:
            replica = await self._pick(tried)
            begun = False
            replica.running += 1
            try:
                async with aclosing(replica.backend.generate(request)) as events:
                    async for batch in events:
                        begun = True
                        yield batch
                return
            except ELSEWHERE as error:
                if begun or not await self._may_go_elsewhere(replica, tried):
                    raise
                log.info("a request goes to another %s runner: %s", self.kind, error.message)
            finally:
                replica.running -= 1

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        return await self._ask(lambda backend: backend.embed(request))

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        return await self._ask(lambda backend: backend.rerank(request))

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return await self._ask(lambda backend: backend.count_tokens(model, prompt))

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        return await self._ask(lambda backend: backend.tokenize(request))

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        return await self._ask(lambda backend: backend.detokenize(request))

    @override
    async def abort(self, request_id: str) -> None:
        for replica in self._replicas.values():
            await replica.backend.abort(request_id)

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        """Loads it on every runner. The progress is that of one of them; `ready` comes when all are, and an error when
        all have ended."""
        first, *others = await self._all()
        tasks = [asyncio.create_task(_load(replica.backend, model)) for replica in others]
        ready = LoadProgress("ready")
        try:
            async with aclosing(first.backend.load(model)) as steps:
                async for progress in steps:
                    if progress.phase == "ready":
                        ready = progress
                    else:
                        yield progress
            _raise_first(await asyncio.gather(*tasks, return_exceptions=True))
            yield ready
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @override
    async def unload(self, model: str) -> None:
        replicas = await self._all()
        calls = (replica.backend.unload(model) for replica in replicas)
        _raise_first(await asyncio.gather(*calls, return_exceptions=True))

    @override
    async def health(self) -> BackendHealth:
        """Healthy while one runner is. A model counts as loaded only where every runner that answers has it."""
        try:
            replicas = await self._all()
        except BackendError as error:
            return BackendHealth(healthy=False, message=error.message)
        found = await asyncio.gather(*(replica.backend.health() for replica in replicas))
        well = [health for health in found if health.healthy]
        if len(found) == 1 or not well:
            return found[0]
        ill = next((health.message for health in found if not health.healthy), None)
        message = None if ill is None else f"{len(well)} of {len(found)} runners are healthy ({ill})"
        return BackendHealth(healthy=True, message=message, models=_merged(well))

    @override
    async def metrics(self) -> bytes:
        """Those of every runner, each sample with its runner's address. One that does not answer is left out."""
        replicas = dict(self._replicas)
        texts = await asyncio.gather(*(replica.backend.metrics() for replica in replicas.values()))
        return b"".join(map(labelled, texts, replicas))

    @override
    async def aclose(self) -> None:
        self._closed = True
        tasks = [*self._leaving, *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.backend.aclose() for replica in self._replicas.values()))

    async def _ask(self, call: Callable[[Backend], Awaitable[T]]) -> T:
        tried: set[_Replica] = set()
        while True:
            replica = await self._pick(tried)
            replica.running += 1
            try:
                return await call(replica.backend)
            except ELSEWHERE:
                if not await self._may_go_elsewhere(replica, tried):
                    raise
            finally:
                replica.running -= 1

    async def _may_go_elsewhere(self, replica: _Replica, tried: set[_Replica]) -> bool:
        tried.add(replica)
        replica.rests_until = self._clock.now() + REST_S
        return not self._closed and any(other not in tried for other in await self._all())

    async def _pick(self, tried: Collection[_Replica]) -> _Replica:
        """The least busy of those that were not tried and do not rest; in turn where several are."""
        now = self._clock.now()
        left = [replica for replica in await self._all() if replica not in tried]
        if not left:
            raise BackendUnavailable("No other runner is there", retry_after_s=RETRY_AFTER_S)
        awake = [replica for replica in left if replica.rests_until <= now] or left
        least = min(replica.running for replica in awake)
        idle = [replica for replica in awake if replica.running == least]
        self._turn += 1
        return idle[self._turn % len(idle)]

    async def _all(self) -> Sequence[_Replica]:
        """Every runner there is, at least one. Raises: BackendUnavailable."""
        now = self._clock.now()
        if not self._closed and now - self._looked_at >= RESOLVE_S and self._looking is None:
            self._looked_at = now
            self._looking = asyncio.create_task(self._look())
        if not self._replicas and self._looking is not None:
            # Shielded: a client that leaves meanwhile takes nobody else's answer away.
            await asyncio.shield(self._looking)
        if self._closed or not self._replicas:
            reason = "This process is shutting down" if self._closed else "No runner is there"
            raise BackendUnavailable(reason, retry_after_s=RETRY_AFTER_S)
        return tuple(self._replicas.values())

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                self._take(await self._resolve(self._host, self._port))
        except OSError as error:
            # TimeoutError is one too. Whoever is known stays.
            log.warning("%s cannot be resolved: %s", self._host, str(error) or "no answer")
        finally:
            self._looking = None

    def _take(self, found: Sequence[str]) -> None:
        """Let the runners be those at these addresses. Ones that are gone from the name finish what they run."""
        for gone in set(self._replicas) - set(found) if found else ():
            task = asyncio.create_task(self._see_off(self._replicas.pop(gone)))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for name in found:
            if name not in self._replicas:
                self._replicas[name] = _Replica(self._connect(f"{self._scheme}://{name}:{self._port}"))

    async def _see_off(self, replica: _Replica) -> None:
        try:
            while replica.running:
                await self._clock.sleep(REST_S)
        finally:
            await replica.backend.aclose()


async def _load(backend: Backend, model: str) -> None:
    async with aclosing(backend.load(model)) as steps:
        async for _ in steps:
            pass


def _raise_first(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _merged(reports: Sequence[BackendHealth]) -> tuple[ModelStatus, ...]:
    """One status per model: that of the runner that is least far with it, with everybody's requests."""
    by_id: dict[str, list[ModelStatus]] = {}
    for report in reports:
        for status in report.models:
            by_id.setdefault(status.id, []).append(status)
    merged = []
    for id_, statuses in by_id.items():
        behind = next((status for status in statuses if status.state != "loaded"), statuses[0])
        merged.append(
            ModelStatus(
                id=id_,
                state=behind.state,
                context_length=statuses[0].context_length,
                message=behind.message,
                running=sum(status.running for status in statuses),
                waiting=sum(status.waiting for status in statuses),
            )
        )
    return tuple(merged)
