"""A pool with a scripted engine and a clock that stands still: what the pool's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from typing_extensions import override

from backends.errors import BackendFailed
from backends.loader import LoadedModel, ModelLoader
from backends.pool import Limits, PooledBackend
from backends.residency import Row
from backends.types import (
    ChoiceFinished,
    EventBatch,
    Finished,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
    Started,
    TextDelta,
    Usage,
)
from models.card import ModelCard, RemoteSource
from models.errors import UnknownModel
from tests.backends.clocks import FakeClock
from tests.backends.contract import request

GIB = 1 << 30


class StubModel(LoadedModel):
    """Answers one token per opened gate; without a gate, at once."""

    def __init__(self, card_id: str, size: int) -> None:
        self.card_id = card_id
        self.context_length = 100
        self.memory_bytes = size
        self.gate: asyncio.Event | None = None
        self.aborted: list[str] = []
        self.closed = False
        self.dead: str | None = None
        self.ring: Callable[[], None] | None = None
        self.text = b""
        self.close_gate: asyncio.Event | None = None
        self.close_error: Exception | None = None
        self._running = 0

    @property
    @override
    def running(self) -> int:
        return self._running

    @property
    @override
    def waiting(self) -> int:
        return 0

    @property
    @override
    def failure(self) -> str | None:
        return self.dead

    @override
    def watch(self, on_failure: Callable[[], None]) -> None:
        self.ring = on_failure

    def die(self, why: str = "The engine's process ended") -> None:
        """By itself, with nobody asking."""
        self.dead = why
        assert self.ring is not None
        self.ring()

    @override
    async def metrics(self) -> bytes:
        return self.text

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        assert not self.closed, "a request reached a model that was closed"
        self._running += 1
        try:
            yield [Started(1.0, 3)]
            if self.gate is not None:
                await self.gate.wait()
            if self.closed:
                raise BackendFailed("The model was unloaded")
            yield [TextDelta(0, "x"), ChoiceFinished(0, "stop"), Finished(Usage(3, 1), queue_ms=1.0)]
        finally:
            self._running -= 1

    @override
    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return 3

    @override
    async def aclose(self) -> None:
        if self.close_gate is not None:
            await self.close_gate.wait()
        self.closed = True
        if self.gate is not None:
            self.gate.set()
        if self.close_error is not None:
            raise self.close_error


class StubLoader(ModelLoader):
    kind = "stub"

    def __init__(self) -> None:
        self.cards: dict[str, ModelCard] = {}
        self.sizes: dict[str, int] = {}
        self.real_sizes: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}
        self.loads: list[str] = []
        self.models: list[StubModel] = []
        self.resolved = 0

    def add(
        self,
        name: str,
        size: int = GIB,
        *,
        autoload: bool = True,
        ttl_s: float | None = None,
        alias: str = "",
    ) -> str:
        self.cards[name] = ModelCard(
            id=name,
            aliases=(alias,) if alias else (),
            backend="fake",
            sources={"fake": RemoteSource(name=name)},
            autoload=autoload,
            idle_ttl_s=ttl_s,
        )
        self.sizes[name] = size
        return name

    def hold(self, name: str) -> asyncio.Event:
        self.gates[name] = asyncio.Event()
        return self.gates[name]

    @override
    def resolve(self, name: str) -> ModelCard:
        self.resolved += 1
        for card in self.cards.values():
            if name == card.id or name in card.aliases:
                return card
        raise UnknownModel(name)

    @override
    def estimate_bytes(self, card: ModelCard) -> int:
        return self.sizes[card.id]

    @override
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        self.loads.append(card.id)
        on_progress(LoadProgress("loading", 1, 2))
        if card.id in self.gates:
            await self.gates[card.id].wait()
        if card.id in self.errors:
            raise self.errors[card.id]
        model = StubModel(card.id, self.real_sizes.get(card.id, self.sizes[card.id]))
        self.models.append(model)
        return model

    def last(self, name: str) -> StubModel:
        return [m for m in self.models if m.card_id == name][-1]


class Bench:
    """A pool with its loader and clock."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.loader = StubLoader()
        self.options = options
        self._pool: PooledBackend | None = None

    @property
    def pool(self) -> PooledBackend:
        if self._pool is None:
            self._pool = PooledBackend(self.loader, clock=self.clock, **self.options)
        return self._pool

    @property
    def rows(self) -> dict[str, Row]:
        """What the pool knows of each card."""
        return self.pool._residents.rows

    async def use(self, name: str) -> list[EventBatch]:
        async with asyncio.timeout(5), aclosing(self.pool.generate(request(name))) as batches:
            return [batch async for batch in batches]

    def using(self, name: str) -> asyncio.Task[list[EventBatch]]:
        return asyncio.create_task(self.use(name))

    async def busy(self, name: str) -> tuple[asyncio.Task[list[EventBatch]], asyncio.Event]:
        """A request that runs until its gate is opened."""
        await self.load(name)
        model = self.loader.last(name)
        model.gate = gate = asyncio.Event()
        task = self.using(name)
        await self.until(lambda: model.running == 1)
        return task, gate

    async def load(self, name: str) -> list[LoadProgress]:
        async with asyncio.timeout(5), aclosing(self.pool.load(name)) as steps:
            return [step async for step in steps]

    async def status(self, name: str) -> ModelStatus | None:
        return next((m for m in (await self.pool.health()).models if m.id == name), None)

    async def state(self, name: str) -> str:
        status = await self.status(name)
        return "absent" if status is None else status.state

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll: an estimate is made in a thread."""
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def limited(**limits: int) -> Bench:
    return Bench(limits=Limits(**limits))
