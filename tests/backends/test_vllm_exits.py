"""The first of several processes to end is noticed, whoever its parent is, and whatever the kernel offers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from backends.vllm import exits
from backends.vllm.exits import first_to_end

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux")

Sleeper = Callable[[], psutil.Process]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Each call gives a process that sleeps."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin() -> psutil.Process:
        begun.append(subprocess.Popen(["sleep", "60"]))
        return psutil.Process(begun[-1].pid)

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise PermissionError(1, "a sandbox")

    monkeypatch.setattr(os, "pidfd_open", refused)
    monkeypatch.setattr(exits, "LOOK_S", 0.01)


@pytest.mark.parametrize("has_descriptors", [True, False])
async def test_the_one_that_ends_is_told(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
):
    if not has_descriptors:
        without(monkeypatch)
    processes = [sleeper(), sleeper(), sleeper()]
    waiting = asyncio.create_task(first_to_end(processes))
    await asyncio.sleep(0)
    assert not waiting.done()
    processes[1].kill()

    assert await asyncio.wait_for(waiting, 5) == processes[1]


@pytest.mark.parametrize("has_descriptors", [True, False])
async def test_one_that_has_ended_before_is_told_at_once(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
):
    alive, dead = sleeper(), sleeper()
    dead.kill()
    dead.wait()
    if not has_descriptors:
        without(monkeypatch)

    assert await asyncio.wait_for(first_to_end([alive, dead]), 5) == dead


async def test_no_descriptor_is_left_open(sleeper: Sleeper):
    process = sleeper()
    before = len(os.listdir("/proc/self/fd"))
    waiting = asyncio.create_task(first_to_end([process]))
    await asyncio.sleep(0)
    during = len(os.listdir("/proc/self/fd"))
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting

    assert during > before
    assert len(os.listdir("/proc/self/fd")) == before
