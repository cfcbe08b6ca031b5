"""What runs too long is ended, and what has ended leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.backstop import Backstop, Held
from backends.errors import BackendTimeout
from tests.openai_compat.virtual_time import run_virtual


def scheduled() -> int:
    """Timers that the running loop keeps, cancelled ones among them."""
    loop: Any = asyncio.get_running_loop()
    return len(loop._scheduled)


async def held(backstop: Backstop, lasts_s: float) -> float:
    """Sleeps under the backstop; how long it was let."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        with backstop.hold("POST /x"):
            await asyncio.sleep(lasts_s)
    except BackendTimeout:
        pass
    return loop.time() - begun


def test_a_block_that_runs_too_long_is_ended_with_a_time_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with Backstop(600).hold("POST /v1/chat/completions"):
            await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR), pytest.raises(BackendTimeout, match="longer than 600 s"):
        run_virtual(scenario())

    assert "POST /v1/chat/completions ran for 600 s" in caplog.text


def test_many_blocks_leave_one_timer_and_nothing_else() -> None:
    async def scenario() -> tuple[int, int]:
        backstop = Backstop(600)
        for _ in range(10_000):
            with backstop.hold("GET /"):
                pass
        gc.collect()
        return scheduled(), sum(type(one) is Held for one in gc.get_objects())

    assert run_virtual(scenario()) == (1, 0)


def test_the_timer_ends_with_the_last_block() -> None:
    async def scenario() -> int:
        backstop = Backstop(10)
        with backstop.hold("GET /"):
            pass
        await asyncio.sleep(11)
        return scheduled()

    assert run_virtual(scenario()) == 0


def test_a_block_that_begins_after_a_quiet_time_is_watched_again() -> None:
    async def scenario() -> float:
        backstop = Backstop(10)
        await held(backstop, 1)
        await asyncio.sleep(100)
        return await held(backstop, 50)

    assert run_virtual(scenario()) == pytest.approx(10)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12))
@settings(deadline=None)
def test_every_block_gets_its_own_time_and_no_more(blocks: list[tuple[int, int]]) -> None:
    backstop = Backstop(10.5)

    async def one(begins_at: int, lasts_s: int) -> float:
        await asyncio.sleep(begins_at)
        return await held(backstop, lasts_s)

    async def scenario() -> list[float]:
        return await asyncio.gather(*(one(*block) for block in blocks))

    assert run_virtual(scenario()) == pytest.approx([min(10.5, lasts_s) for _, lasts_s in blocks])


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def scenario() -> bool:
        task = asyncio.create_task(held(Backstop(600), 100))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert run_virtual(scenario())


def test_the_task_can_go_on_after_its_block_was_ended() -> None:
    async def scenario() -> int:
        task = asyncio.current_task()
        assert task is not None
        await held(Backstop(1), 5)
        await asyncio.sleep(5)
        return task.cancelling()

    assert run_virtual(scenario()) == 0


def test_an_error_on_the_way_out_is_not_hidden() -> None:
    async def scenario() -> None:
        with Backstop(1).hold("GET /"):
            try:
                await asyncio.sleep(5)
            finally:
                raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        run_virtual(scenario())
