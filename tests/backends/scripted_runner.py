"""A backend that does what a test says, for what lies between a runner and its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from typing_extensions import override

from backends.base import Backend
from backends.errors import InvalidParameter, ServiceError
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    ChoiceFinished,
    Event,
    EventBatch,
    Finished,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
    Started,
    TextDelta,
    TextPrompt,
    Usage,
)
from tests.backends.contract import request

ANSWER: list[EventBatch] = [
    [Started(0.0, 3)],
    [TextDelta(0, "one")],
    [TextDelta(0, " two")],
    [ChoiceFinished(0, "stop")],
    [Finished(Usage(3, 2))],
]


class Scripted(Backend):
    """Yields `ANSWER`, each batch when `gate` lets it; remembers what reached it."""

    kind = "scripted"

    def __init__(self, batches: list[EventBatch] | None = None) -> None:
        self.batches = ANSWER if batches is None else batches
        self.gate: Callable[[int], Awaitable[None]] | None = None
        self.received: list[GenerationRequest] = []
        self.ended: list[str] = []
        self.phase = ""
        self.linger_s = 0.0
        self.closed = False
        self.error: Exception | None = None
        self.load_error: Exception | None = None

    @override
    async def start(self) -> None:
        self.phase = "started"

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        self.received.append(request)
        try:
            for i, batch in enumerate(self.batches):
                if self.gate is not None:
                    await self.gate(i)
                yield batch
            if self.error is not None:
                raise self.error
            await asyncio.sleep(self.linger_s)
            self.ended.append("whole")
        except (asyncio.CancelledError, GeneratorExit):
            self.ended.append("cut")
            raise

    @override
    async def abort(self, request_id: str) -> None: ...

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return 7

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        if request.prompt == TextPrompt(text="bad"):
            raise InvalidParameter("prompt: bad", param="prompt")
        return Tokens(2, (4, 5), ("a", "b") if request.with_strings else None, 8, request.model == "guess")

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        return f"{request.model} {list(request.token_ids)} ä"

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        yield LoadProgress("fetching", 1, 4)
        if self.load_error is not None:
            raise self.load_error
        yield LoadProgress("ready", 4, 4)

    @override
    async def unload(self, model: str) -> None:
        self.ended.append(f"unloaded {model}")

    @override
    async def health(self) -> BackendHealth:
        return BackendHealth(healthy=True, models=(ModelStatus(id='a"b', state="loaded", running=2),))

    @override
    async def aclose(self) -> None:
        self.closed = True


async def forever(_: int) -> None:
    await asyncio.Event().wait()


def stall_at(step: int) -> Callable[[int], Awaitable[None]]:
    async def gate(i: int) -> None:
        if i == step:
            await forever(i)

    return gate


async def collect(backend: Backend, wanted: GenerationRequest) -> list[EventBatch]:
    async with asyncio.timeout(20), aclosing(backend.generate(wanted)) as batches:
        return [batch async for batch in batches]


async def until_it_ends(backend: Backend) -> tuple[list[Event], Exception | None]:
    """What a stream delivered, and the error that ended it."""
    seen: list[Event] = []
    try:
        async for batch in backend.generate(request("m", stream=True)):
            seen += batch
    except ServiceError as error:
        return seen, error
    return seen, None


def flat(batches: list[EventBatch]) -> list[Event]:
    return [event for batch in batches for event in batch]


async def at_once(value: Any) -> bool:
    """What `until` wants of a condition that needs no waiting."""
    return bool(value)
