"""Signals are taken by the drain first, and by the server's own handler after it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from backends.termination import Termination

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def passed_on() -> Iterator[list[int]]:
    """The signals that the server's own handler got."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    got: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _frame: got.append(number))
    yield got
    for number, handler in before.items():
        signal.signal(number, handler)


class Drain:
    """Runs until it is let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self) -> None:
        self.begun.set()
        await self.may_end.wait()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_server_hears_of_the_signal_when_the_drain_is_over(passed_on: list[int]):
    drain = Drain()
    Termination(drain)

    signal.raise_signal(signal.SIGTERM)
    await drain.begun.wait()
    assert passed_on == []
    drain.may_end.set()
    await turns()

    assert passed_on == [signal.SIGTERM]


async def test_a_signal_to_all_processes_at_once_does_not_cut_the_drain_short(passed_on: list[int]):
    drain = Drain()
    Termination(drain)

    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # the supervisor passes on what it got itself
    await drain.begun.wait()
    await turns()
    assert passed_on == []
    drain.may_end.set()
    await turns()

    assert passed_on == [signal.SIGTERM]


async def test_a_second_wish_ends_the_drain(passed_on: list[int]):
    drain = Drain()
    Termination(drain, same_wish_s=0.0)

    signal.raise_signal(signal.SIGTERM)
    await drain.begun.wait()
    signal.raise_signal(signal.SIGTERM)
    await turns()

    assert passed_on == [signal.SIGTERM]
    drain.may_end.set()
    await turns()


async def test_a_failed_drain_stops_all_the_same(passed_on: list[int]):
    async def broken() -> None:
        raise ZeroDivisionError

    Termination(broken)
    signal.raise_signal(signal.SIGTERM)
    await turns()

    assert passed_on == [signal.SIGTERM]
