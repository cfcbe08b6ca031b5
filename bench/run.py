"""Runs one measurement under the conditions that its result states."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench.machine import FIFO_WARNING
from bench.measurement import Measurement, Setup
from bench.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The same for all measurements of one command."""

    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    scheduling: str


def arguments(measurement: Measurement, given: Sequence[str] = ()) -> argparse.Namespace:
    """What a measurement is run with where the command line is not its own: its defaults, and `given`."""
    parser = argparse.ArgumentParser()
    measurement.add_arguments(parser)
    return parser.parse_args(list(given))


def run(
    measurement: Measurement, options: argparse.Namespace, setup: Setup, conditions: Conditions
) -> Result:
    """Raises: PeerMissing, ServerFailed, LoadFailed; SystemExit 143 when it is told to end."""
    result = Result(
        name=measurement.name,
        command=conditions.command,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=conditions.machine,
        versions=conditions.versions,
        scheduling=conditions.scheduling,
        client="",
    )

    async def measured() -> None:
        found = await measurement.measure(options, setup)
        result.parameters, result.n, result.data = found.parameters, found.n, found.data
        result.errors, result.warnings, result.client = found.errors, found.warnings, found.client
        if setup.priority:
            result.warnings.append(FIFO_WARNING)
        result.versions = {**result.versions, **found.versions}

    try:
        import uvloop
    except ImportError:
        loop = "asyncio's own loop"
        _until_done(asyncio.Runner(), measured())
    else:
        loop = "uvloop"
        _until_done(asyncio.Runner(loop_factory=uvloop.new_event_loop), measured())
    result.client = f"{result.client}, {loop}"
    return result


def _until_done(runner: asyncio.Runner, work: Coroutine[Any, Any, None]) -> None:
    """The first SIGTERM ends it as Ctrl-C does: the servers are stopped before it is over."""

    async def stoppable() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop() -> None:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            task.cancel()

        loop.add_signal_handler(signal.SIGTERM, stop)
        await work

    with runner:
        try:
            runner.run(stoppable())
        except asyncio.CancelledError:
            raise SystemExit(143) from None
