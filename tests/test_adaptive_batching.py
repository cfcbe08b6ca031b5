"""BentoML's dispatcher in front of an engine that these tests hold in their hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from adaptive_batching import MAX_WAIT_S, AdaptiveBatcher
from backends.batching import BatchLimits, Piece
from backends.errors import BackendFailed, Overloaded

Pieces = Sequence[Piece[int]]


class Engine:
    """Doubles numbers. A call takes `seconds`, or until `release` where `is_held`; `calls` lists the inputs of each."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.seconds = 0.0
        self.is_held = False
        self.release = asyncio.Event()
        self.error: Exception | None = None
        self.running = 0
        self.most_at_once = 0

    async def __call__(self, pieces: Pieces) -> list[list[int]]:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        self.calls.append([number for piece in pieces for number in piece.inputs if not piece.is_abandoned])
        try:
            if self.is_held:
                await self.release.wait()
            await asyncio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
        finally:
            self.running -= 1
        return [[2 * number for number in piece.inputs] for piece in pieces]


@pytest.fixture
def engine() -> Engine:
    return Engine()


Make = Callable[..., AdaptiveBatcher[int, int]]


@pytest.fixture
async def make(engine: Engine) -> AsyncIterator[Make]:
    made: list[AdaptiveBatcher[int, int]] = []

    def begin(max_cost: int = 1000, **knobs: int) -> AdaptiveBatcher[int, int]:
        knobs = {"max_batch_size": 8, "max_latency_ms": 10_000, **knobs}
        batcher: AdaptiveBatcher[int, int] = AdaptiveBatcher(engine, BatchLimits(64, max_cost), **knobs)
        made.append(batcher)
        return batcher

    yield begin
    for batcher in made:
        batcher.close()
    await asyncio.sleep(0)


def one(_: int) -> int:
    return 1


async def ask(
    batcher: AdaptiveBatcher[int, int], *numbers: int, cost: Callable[[int], int] = one
) -> list[int]:
    async with asyncio.timeout(20):
        return await batcher.compute_all(numbers, cost)


async def warmed(batcher: AdaptiveBatcher[int, int], engine: Engine) -> None:
    """Past the calls with which the dispatcher gets to know its engine."""
    for _ in range(16):
        await ask(batcher, 0)
    engine.calls.clear()


async def test_requests_at_once_share_engine_calls(make: Make, engine: Engine) -> None:
    batcher = make()
    await warmed(batcher, engine)
    engine.seconds = 0.01

    answers = await asyncio.gather(*(ask(batcher, n) for n in range(32)))

    assert answers == [[2 * n] for n in range(32)]
    assert len(engine.calls) <= 8
    assert engine.most_at_once == 1


async def test_a_request_larger_than_a_batch_is_cut_and_joined_in_order(make: Make, engine: Engine) -> None:
    batcher = make(max_batch_size=8)

    answer = await ask(batcher, *range(20))

    assert answer == [2 * n for n in range(20)]
    assert [len(call) for call in engine.calls] == [8, 8, 4]


async def test_a_batch_costs_no_more_than_the_engine_takes(make: Make, engine: Engine) -> None:
    batcher = make(max_cost=100)
    await warmed(batcher, engine)
    engine.seconds = 0.01

    await asyncio.gather(*(ask(batcher, n, cost=lambda _: 40) for n in range(10)))

    assert max(map(len, engine.calls)) == 2


async def test_a_large_request_leaves_room_for_small_ones_between_its_pieces(
    make: Make, engine: Engine
) -> None:
    batcher = make(max_batch_size=8)
    await warmed(batcher, engine)
    engine.seconds = 0.005
    large = asyncio.ensure_future(ask(batcher, *range(100, 164)))
    await asyncio.sleep(0.007)

    await ask(batcher, 1)

    assert not large.done()
    assert await large == [2 * n for n in range(100, 164)]


async def test_what_the_engine_raises_is_the_outcome_of_its_batch_only(make: Make, engine: Engine) -> None:
    batcher = make()
    engine.error = BackendFailed("no")
    with pytest.raises(BackendFailed):
        await ask(batcher, 1)

    engine.error = None

    assert await ask(batcher, 2) == [4]


async def test_what_would_be_late_is_refused_with_a_time_to_try_again(make: Make, engine: Engine) -> None:
    batcher = make(max_latency_ms=50)
    await warmed(batcher, engine)
    engine.is_held = True
    first = asyncio.ensure_future(ask(batcher, 1))
    await asyncio.sleep(0.01)

    outcomes = await asyncio.gather(*(ask(batcher, n) for n in (2, 3)), return_exceptions=True)
    engine.release.set()

    assert [type(outcome) for outcome in outcomes] == [Overloaded, Overloaded]
    assert all(isinstance(o, Overloaded) and (o.retry_after_s or 0) >= 1 for o in outcomes)
    assert await first == [2]


async def test_a_burst_after_single_requests_is_not_judged_hopeless(make: Make, engine: Engine) -> None:
    batcher = make(max_latency_ms=2_000)
    engine.seconds = 0.02
    await warmed(batcher, engine)

    # At half of 20 ms for each, as a fit over single requests says, 250 would take 2.5 s. They take 32 calls.
    answers = await asyncio.gather(*(ask(batcher, n) for n in range(250)))

    assert len(answers) == 250


async def test_a_request_that_is_given_up_is_cancelled_and_not_computed(make: Make, engine: Engine) -> None:
    batcher = make()
    await warmed(batcher, engine)
    engine.is_held = True
    first = asyncio.ensure_future(ask(batcher, 1))
    await asyncio.sleep(0.01)
    second = asyncio.ensure_future(ask(batcher, 2))
    third = asyncio.ensure_future(ask(batcher, 3))
    await asyncio.sleep(0)

    second.cancel()
    engine.release.set()
    outcomes = await asyncio.gather(first, second, third, return_exceptions=True)

    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert (outcomes[0], outcomes[2]) == ([2], [6])
    assert all(2 not in call for call in engine.calls)


async def test_a_single_client_after_a_burst_waits_for_nobody(make: Make, engine: Engine) -> None:
    batcher = make(max_batch_size=8)
    engine.seconds = 0.01
    await asyncio.gather(*(ask(batcher, n) for n in range(200)))
    engine.seconds = 0.0
    batcher._dispatcher.optimizer.trigger_refresh()
    loop = asyncio.get_running_loop()

    begun = loop.time()
    await ask(batcher, 1)

    assert batcher._dispatcher.optimizer.wait <= MAX_WAIT_S
    assert loop.time() - begun < 0.05


async def test_closing_fails_what_waits_and_what_comes_after(make: Make, engine: Engine) -> None:
    batcher = make()
    await warmed(batcher, engine)
    engine.is_held = True
    running = asyncio.ensure_future(ask(batcher, 1))
    await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(ask(batcher, 2))
    await asyncio.sleep(0)

    batcher.close()
    engine.release.set()
    outcomes: list[Any] = await asyncio.gather(running, waiting, ask(batcher, 3), return_exceptions=True)

    assert outcomes[0] == [2]
    assert [type(outcome) for outcome in outcomes[1:]] == [BackendFailed, BackendFailed]
