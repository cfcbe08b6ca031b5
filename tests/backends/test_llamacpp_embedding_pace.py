"""Passes of embeddings beside an answer that is computed on the same cores."""

from __future__ import annotations

import pytest

from backends.llamacpp.embedding_pace import RESTS, Pace


class World:
    """A clock that only sleeping moves; the answer ends at `generating_until`."""

    def __init__(self, generating_until: float = 0.0) -> None:
        self.now = 100.0
        self.generating_until = 100.0 + generating_until
        self.pace = Pace(lambda: self.now < self.generating_until, clock=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def waited(self) -> float:
        begin = self.now
        await self.pace.turn()
        return self.now - begin


async def test_the_first_pass_begins_at_once() -> None:
    assert await World(generating_until=10).waited() == 0


async def test_after_a_pass_that_had_to_share_its_core_the_next_one_rests() -> None:
    world = World(generating_until=10)
    world.pace.passed(0.3, cpu_seconds=0.1)

    assert await world.waited() == pytest.approx(RESTS * 0.3)
    assert await world.waited() == 0


async def test_with_cores_enough_for_both_nobody_rests() -> None:
    world = World(generating_until=10)
    world.pace.passed(0.1, cpu_seconds=0.095)

    assert await world.waited() == 0


async def test_without_an_answer_nobody_rests() -> None:
    world = World()
    world.pace.passed(0.3, cpu_seconds=0.1)

    assert await world.waited() == 0


async def test_the_rest_ends_with_the_answer() -> None:
    world = World(generating_until=0.05)
    world.pace.passed(0.3, cpu_seconds=0.1)

    assert 0.05 <= await world.waited() < 0.1


async def test_time_that_passed_meanwhile_is_rest_too() -> None:
    world = World(generating_until=10)
    world.pace.passed(0.3, cpu_seconds=0.1)
    world.now += 0.5

    assert await world.waited() == pytest.approx(0.1)


async def test_one_slow_pass_does_not_stop_the_others_for_long() -> None:
    world = World(generating_until=100)
    world.pace.passed(30.0, cpu_seconds=1.0)

    assert await world.waited() == pytest.approx(2.0)
