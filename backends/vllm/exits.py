"""Noticing that a process has ended, also one that is not a child of this one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

import psutil

LOOK_S: Final = 0.25
"""How often processes are looked at where the kernel does not tell."""


async def first_to_end(processes: Sequence[psutil.Process]) -> psutil.Process:
    """Wait until one of them has ended. The kernel tells (a descriptor of a process becomes readable then), so that
    nothing wakes up meanwhile: the engine's threads need the cores. Without that (Linux before 5.3, a sandbox that
    forbids it) they are looked at."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[psutil.Process] = loop.create_future()
    descriptors: list[int] = []

    def note(process: psutil.Process) -> None:
        if not ended.done():
            ended.set_result(process)

    try:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except ProcessLookupError:
                return process
            descriptors.append(descriptor)
            loop.add_reader(descriptor, note, process)
            if not is_alive(process):  # its number may have been another's by then
                return process
        return await ended
    except (AttributeError, OSError):
        return await _looked_at(processes)
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)


async def _looked_at(processes: Sequence[psutil.Process]) -> psutil.Process:
    while True:
        for process in processes:
            if not is_alive(process):
                return process
        await asyncio.sleep(LOOK_S)


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended and whose parent has not noticed does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
