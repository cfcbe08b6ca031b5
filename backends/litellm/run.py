"""One request: its calls side by side, and the one row of events that comes out of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final

from backends.errors import ServiceError
from backends.litellm import usage
from backends.litellm.call import Call
from backends.litellm.provenance import Testimony
from backends.provenance import Provenance
from backends.types import EventBatch, Finished, Started, Usage

HIGH_WATER_EVENTS: Final = 512
"""More than this unread: the calls wait, and with them the providers."""

CLOSE_WAIT_S: Final = 2.0


class Run:
    """`hold`: nobody reads before the end, so everything comes in one batch. `testify`: makes of what the calls heard
    what the request wants to be told; None: it wants nothing."""

    def __init__(
        self,
        request_id: str,
        model: str,
        *,
        num_prompts: int,
        hold: bool,
        testify: Callable[[Iterable[Testimony]], Provenance] | None = None,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self._hold = hold
        self._testify = testify
        self._calls: list[tuple[int, Call]] = []
        self._num_prompts = num_prompts
        self._tasks: list[asyncio.Task[None]] = []
        self._inbox: EventBatch = []
        self._error: BaseException | None = None
        self._running = 0
        self._wake: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    def add(self, prompt: int, call: Call) -> None:
        self._calls.append((prompt, call))

    async def put(self, events: EventBatch) -> None:
        """Take events of a call; waits while the reader is far behind."""
        self._inbox += events
        if not self._hold:
            self._rouse()
            if len(self._inbox) > HIGH_WATER_EVENTS:
                self._room.clear()
                await self._room.wait()

    def end(self, error: ServiceError) -> None:
        """Stop the calls; whoever reads the events gets the error."""
        if self._error is None:
            self._error = error
        self._stop()
        self._rouse()

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        """The events of the request. Closing it closes the connections to the providers."""
        begun = time.perf_counter()
        first: float | None = None
        self._running = len(self._calls)
        try:
            for _, call in self._calls:
                task = asyncio.create_task(call.run())
                task.add_done_callback(self._done)
                self._tasks.append(task)
            while self._running and self._error is None:
                await self._wait()
                if self._hold or not self._inbox or self._error is not None:
                    continue
                batch = self._taken()
                if first is None:
                    first = time.perf_counter()
                    batch.insert(0, Started(0.0, 0))
                yield batch
            if self._error is not None:
                raise self._error
            counted = self._usage()
            batch = self._taken()
            now = time.perf_counter()
            if first is None:
                first = now
                batch.insert(0, Started(0.0, counted.prompt_tokens))
            told = self._testify(call.testimony for _, call in self._calls) if self._testify else None
            batch.append(Finished(counted, 0.0, (first - begun) * 1000, (now - first) * 1000, told))
            yield batch
        finally:
            await self._close()

    def _usage(self) -> Usage:
        per_prompt: list[list[usage.Tokens]] = [[] for _ in range(self._num_prompts)]
        for prompt, call in self._calls:
            per_prompt[prompt] += call.tokens
        return usage.total(per_prompt)

    def _taken(self) -> EventBatch:
        batch, self._inbox = self._inbox, []
        self._room.set()
        return batch

    async def _wait(self) -> None:
        if self._error is not None or (self._inbox and not self._hold):
            return
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running -= 1
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            self._error = error
            self._stop()
        if self._error is not None or not self._running:
            self._rouse()

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for _, call in self._calls:
            call.close()

    async def _close(self) -> None:
        self._stop()
        if any(not task.done() for task in self._tasks):
            # The connections are closed; whatever LiteLLM still does about it holds nobody up for long.
            await asyncio.wait(self._tasks, timeout=CLOSE_WAIT_S)
