"""A backend whose every step a test writes down: events, pauses, failures. It keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from backends.base import Backend
from backends.types import (
    BackendHealth,
    ChoiceFinished,
    Event,
    EventBatch,
    Feature,
    Finished,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
    Started,
    TextDelta,
    Usage,
)


@dataclass(frozen=True)
class Pause:
    """Wait this many seconds of the loop's time."""

    seconds: float


class Hang:
    """Wait until somebody closes the generator."""


Step = Event | EventBatch | Pause | Hang | Exception
Script = Sequence[Step] | Callable[[GenerationRequest], Sequence[Step]]


def words(*texts: str, index: int = 0, reason: Any = "stop", usage: Usage | None = None) -> list[Event]:
    """A whole answer of one choice, one delta per text."""
    return [
        Started(0.0, 5),
        *(TextDelta(index, text) for text in texts),
        ChoiceFinished(index, reason),
        Finished(usage or Usage(5, len(texts))),
    ]


def hello(request: GenerationRequest) -> list[Event]:
    """ "Hello!" in two deltas for every choice, taking turns."""
    indexes = range(request.n * len(request.prompts))
    return [
        Started(0.0, 5),
        *(TextDelta(index, "Hello") for index in indexes),
        *(TextDelta(index, "!") for index in indexes),
        *(ChoiceFinished(index, "stop") for index in indexes),
        Finished(Usage(5, 2 * len(indexes), 3)),
    ]


@dataclass
class ScriptedBackend(Backend):
    """Runs `script` for every request. `closed` counts generators that ended, however."""

    script: Script = hello
    kind: str = "fake"
    models: tuple[ModelStatus, ...] = (ModelStatus(id="tiny", state="loaded", context_length=2048),)
    features: frozenset[Feature] = frozenset()
    healthy: bool = True
    health_s: float = 0.0
    load_steps: Sequence[LoadProgress | Pause | Exception] = (
        LoadProgress("loading", 5, 10),
        LoadProgress("ready", 10, 10),
    )
    unload_error: Exception | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    running: int = 0
    closed: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a script comes to a `Hang` or its first pause."""

    @override
    async def start(self) -> None:
        self.calls.append("start")

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        self.requests.append(request)
        self.running += 1
        try:
            for step in self.script(request) if callable(self.script) else self.script:
                if isinstance(step, Pause):
                    self.reached.set()
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Hang):
                    self.reached.set()
                    await asyncio.Event().wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step if isinstance(step, list) else [step]
        finally:
            self.running -= 1
            self.closed += 1

    @override
    async def abort(self, request_id: str) -> None:
        self.calls.append(f"abort {request_id}")

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return 5

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        self.calls.append(f"load {model}")
        for step in self.load_steps:
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Exception):
                raise step
            else:
                yield step
        self.models = (ModelStatus(id=model, state="loaded", context_length=2048),)

    @override
    async def unload(self, model: str) -> None:
        self.calls.append(f"unload {model}")
        if self.unload_error is not None:
            raise self.unload_error
        self.models = (ModelStatus(id=model, state="unloaded"),)

    @override
    async def health(self) -> BackendHealth:
        if self.health_s:
            await asyncio.sleep(self.health_s)
        return BackendHealth(
            healthy=self.healthy, message=None if self.healthy else "Connection refused", models=self.models
        )

    @override
    async def aclose(self) -> None:
        self.calls.append("aclose")
