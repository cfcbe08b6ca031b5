"""BentoML's adaptive batching in front of an engine of ours (docs/decisions/embeddings-batching.md).

`bentoml.api(batchable=True)` puts a dispatcher between a route of BentoML's and a method. Here the same dispatcher
stands behind the runner's own wire, one for each loaded model, with four things done that a route leaves open:

- What it drops, because it would be late, is an Overloaded with a time to try again.
- A batch is bounded by what one forward pass takes, in tokens too, and so is always one engine call.
- It waits for company a few milliseconds at most. Left alone it waits as long as requests waited lately, which after a
  burst makes a single client wait for nobody.
- A request whose client left is not computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bentoml._internal.marshal.dispatcher import CorkDispatcher, Optimizer
from typing_extensions import override

from backends.batching import Batcher, BatchLimits, Compute, Input, Output, Piece
from backends.errors import BackendFailed, Overloaded

MAX_WAIT_S: Final = 0.002
"""Longest wait for company while the engine is free."""
RETRY_AFTER_S: Final = 2.0
_NO_SLOPE: Final = 1e-6


class AdaptiveBatcher(Batcher[Input, Output]):
    """`max_latency_ms`: a piece that would be answered later is dropped instead. `max_batch_size`: inputs of one batch,
    beside what the engine takes."""

    def __init__(
        self,
        compute: Compute[Input, Output],
        limits: BatchLimits,
        *,
        max_batch_size: int,
        max_latency_ms: int,
    ) -> None:
        self.limits = BatchLimits(min(limits.max_inputs, max_batch_size), limits.max_cost)
        self._max_latency_ms = max_latency_ms
        self._is_closed = False
        self._dispatcher = _Dispatcher(self.limits, max_latency_ms, self._without_outcome)

        async def call(pieces: Sequence[Piece[Input]]) -> Sequence[Sequence[Output]]:
            return await compute(pieces)

        self._dispatch = self._dispatcher(call)

    @override
    async def compute(self, piece: Piece[Input]) -> Sequence[Output]:
        if self._is_closed:
            raise _closed()
        try:
            outputs = await self._dispatch(piece)
        except asyncio.CancelledError:
            piece.is_abandoned = True
            raise
        assert outputs is not None
        return outputs

    def _without_outcome(self) -> Any:
        """What the dispatcher calls for a piece whose future was cancelled: it was dropped, or we were closed, or the
        task that waits was itself cancelled, which the dispatcher takes for the same."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        if self._is_closed:
            raise _closed()
        raise Overloaded(
            f"Too many embeddings wait: this one would take longer than {self._max_latency_ms} ms",
            retry_after_s=RETRY_AFTER_S,
        )

    @override
    def close(self) -> None:
        self._is_closed = True
        self._dispatcher.shutdown()


class _Dispatcher(CorkDispatcher[Piece[Any], Sequence[Any]]):
    """Takes pieces whole, as many as fit into one batch."""

    def __init__(self, limits: BatchLimits, max_latency_ms: int, fallback: Any) -> None:
        super().__init__(max_latency_ms, limits.max_inputs, fallback=fallback, get_batch_size=_num_inputs)
        self.optimizer = _Optimizer(self.max_latency)
        self._limits = limits

    @override
    def _get_inputs(self, num_batches: int | None = None) -> Iterator[Any]:
        num_inputs = cost = 0
        while self._queue:
            piece: Piece[Any] = self._queue[0].data
            num_inputs += len(piece.inputs)
            cost += piece.cost
            is_first = num_inputs == len(piece.inputs)
            if not is_first and (num_inputs > self._limits.max_inputs or cost > self._limits.max_cost):
                return
            yield self._queue.popleft()


class _Optimizer(Optimizer):
    """Fits duration = a · n + b over the last batches."""

    @override
    def trigger_refresh(self) -> None:
        super().trigger_refresh()  # type: ignore[no-untyped-call]
        self.wait = min(self.wait, MAX_WAIT_S)  # type: ignore[assignment]
        if len({n for n, _, _ in self.o_stat}) == 1:
            # Batches of one size say nothing of the slope, and the fit then gives it half of the duration: a burst that
            # follows single requests would be judged hopeless and dropped.
            self.o_a = _NO_SLOPE
            self.o_b = sum(seconds for _, seconds, _ in self.o_stat) / len(self.o_stat)


def _num_inputs(piece: Piece[Any]) -> int:
    return len(piece.inputs)


def _closed() -> BackendFailed:
    return BackendFailed("The model was unloaded before the request was complete")
