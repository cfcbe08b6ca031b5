"""The seam between a model that computes many inputs at once and whoever decides which inputs go together.

The service puts BentoML's dispatcher behind it (`adaptive_batching`); this package knows no BentoML.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from typing_extensions import override

Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(slots=True, eq=False)
class Piece(Generic[Input]):
    """What one request puts into one batch. `cost`: how much of a batch's `max_cost` it takes, in the engine's own
    unit (tokens)."""

    inputs: Sequence[Input]
    cost: int
    is_abandoned: bool = False
    """Nobody waits for it any more; it need not be computed."""


Compute = Callable[[Sequence[Piece[Input]]], Awaitable[Sequence[Sequence[Output]]]]
"""One engine call over all inputs of all pieces; the outputs come piece by piece, in order. What it raises is the
outcome of every piece, so nothing may be wrong with a single input any more."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one engine call takes at most."""

    max_inputs: int
    max_cost: int


class Batcher(ABC, Generic[Input, Output]):
    """A queue of pieces in front of one engine; at most one batch is computed at a time. Used from one event loop."""

    limits: BatchLimits

    @abstractmethod
    async def compute(self, piece: Piece[Input]) -> Sequence[Output]:
        """The outputs of a piece that is within the limits, computed together with others'. Cancelling gives up its
        place.

        Raises: Overloaded (it would wait too long), BackendFailed (closed), and what the engine call raised.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what waits. A batch that runs is not waited for. Idempotent."""

    async def compute_all(self, inputs: Sequence[Input], cost_of: Callable[[Input], int]) -> list[Output]:
        """The outputs of one request's inputs, in order, however many they are.

        One piece after the other: a request of thousands takes its turn in every batch but never fills the queue, so
        that those of others wait for one batch and not for all of it.
        """
        outputs: list[Output] = []
        for piece in cut(inputs, cost_of, self.limits):
            outputs += await self.compute(piece)
        return outputs


BatcherFactory = Callable[["Compute[Input, Output]", BatchLimits], Batcher[Input, Output]]


def cut(
    inputs: Sequence[Input], cost_of: Callable[[Input], int], limits: BatchLimits
) -> Iterator[Piece[Input]]:
    """The inputs in pieces that each fit into one batch, in order. An input that costs more than a batch takes is a
    piece of its own."""
    begin = cost = 0
    for index, item in enumerate(inputs):
        more = cost_of(item)
        if index > begin and (index - begin >= limits.max_inputs or cost + more > limits.max_cost):
            yield Piece(inputs[begin:index], cost)
            begin, cost = index, 0
        cost += more
    if begin < len(inputs):
        yield Piece(inputs[begin:], cost)


class Unbatched(Batcher[Input, Output]):
    """Each piece in an engine call of its own, in the order in which they come: what batching is measured against."""

    def __init__(self, compute: Compute[Input, Output], limits: BatchLimits) -> None:
        self.limits = limits
        self._compute = compute
        self._engine = asyncio.Lock()

    @override
    async def compute(self, piece: Piece[Input]) -> Sequence[Output]:
        async with self._engine:
            return (await self._compute((piece,)))[0]

    @override
    def close(self) -> None:
        """Nothing waits here that its own task does not end."""
