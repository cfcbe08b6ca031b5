"""The command: one subcommand per measurement, `all` for every one, `report` for the page of results."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.aborts import ABORTS
from bench.compare import COMPARE
from bench.control import CONTROL
from bench.echo import ECHO
from bench.embeddings import EMBEDDINGS
from bench.litellm_proxy import LITELLM
from bench.litellm_soak import LITELLM_SOAK
from bench.load import LoadFailed
from bench.machine import FIFO_WARNING, machine, take_niceness, take_priority, versions
from bench.measurement import Measurement, Setup
from bench.ours import ROOT
from bench.passthrough import PASSTHROUGH
from bench.processes import ServerFailed
from bench.relay import RELAY
from bench.report import PAGE, report
from bench.result import Result, write
from bench.shared_prefix import SHARED_PREFIX
from bench.start import START
from bench.vllm_server import VLLM

MEASUREMENTS = {
    each.name: each
    for each in (
        START,
        COMPARE,
        SHARED_PREFIX,
        ECHO,
        CONTROL,
        ABORTS,
        RELAY,
        PASSTHROUGH,
        VLLM,
        LITELLM,
        LITELLM_SOAK,
        EMBEDDINGS,
    )
}
OF_THIS_RUN_ONLY = ("--llama-server", "--out", "--proxy", "--python", "--weights")
"""Paths say nothing about a measurement; the command in a report goes without them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 when a measurement failed or had errors."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.name == "report":
        try:
            names = report(options.folder, {name: each.table for name, each in MEASUREMENTS.items()})
        except (OSError, ValueError) as error:
            print(f"{PAGE.name}: {error}", file=sys.stderr)
            return 1
        print(f"{PAGE.relative_to(ROOT)}: {', '.join(names) or 'no results found'}")
        return 0 if names else 1
    setup = Setup(options.out.resolve(), options.priority, options.llama_server, options.seed)
    about = machine()
    # Asked before the priority is taken: the commands that tell them would inherit it.
    known = versions()
    scheduling = "usual"
    if options.priority:
        scheduling = take_priority(options.priority)
    elif options.nice:
        scheduling = take_niceness(options.nice)
    failed = False
    for measurement in MEASUREMENTS.values() if options.name == "all" else [MEASUREMENTS[options.name]]:
        mine = options
        if options.name == "all":
            mine = argparse.Namespace()
            parser = argparse.ArgumentParser()
            measurement.add_arguments(parser)
            parser.parse_args(measurement.quick if options.quick else [], mine)
        setup.say(f"== {measurement.name}: {measurement.title}")
        result = Result(
            name=measurement.name,
            command=shown_command(given),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=about,
            versions=known,
            scheduling=scheduling,
            client="",
        )
        try:
            loop = _run(measurement, mine, setup, result)
        except (ServerFailed, LoadFailed) as error:
            setup.say(f"{measurement.name} failed: {error}")
            failed = True
            continue
        result.client = f"{result.client}, {loop}"
        print(f"\n{write(result, setup.out, measurement.table)}\n", flush=True)
        failed |= bool(result.errors)
    return int(failed)


def _run(measurement: Measurement, options: argparse.Namespace, setup: Setup, result: Result) -> str:
    """Measure into `result`; gives the name of the event loop."""

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
        _until_done(asyncio.Runner(), measured())
        return "asyncio's own loop"
    _until_done(asyncio.Runner(loop_factory=uvloop.new_event_loop), measured())
    return "uvloop"


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


def shown_command(given: Sequence[str]) -> str:
    """The command as the report states it."""
    kept: list[str] = []
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word in OF_THIS_RUN_ONLY:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in OF_THIS_RUN_ONLY)):
            kept.append(word)
    return shlex.join(["python", "-m", "bench", *kept])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--out", type=Path, default=ROOT / ".cache" / "bench", help="folder for results and logs"
    )
    shared.add_argument("--seed", type=int, default=1, help="of prompts and lengths")
    others = shared.add_mutually_exclusive_group()
    others.add_argument(
        "--nice",
        type=int,
        metavar="N",
        choices=range(-20, 20),
        help="of client and servers; -20 measures on a machine that others use too",
    )
    others.add_argument(
        "--priority",
        type=int,
        metavar="N",
        choices=range(1, 99),
        help="real-time level of the servers, the client one above; distorts TTFT and ITL",
    )
    shared.add_argument(
        "--llama-server", type=Path, metavar="PATH", help="default: that of `make bench-setup`"
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="MEASUREMENT")
    for measurement in MEASUREMENTS.values():
        measurement.add_arguments(
            commands.add_parser(measurement.name, help=measurement.title, parents=[shared])
        )
    everything = commands.add_parser("all", help="every measurement, one after the other", parents=[shared])
    everything.add_argument("--quick", action="store_true", help="a smoke test: the numbers mean nothing")
    page = commands.add_parser("report", help=f"put results into {PAGE.relative_to(ROOT)}")
    page.add_argument("--from", type=Path, required=True, dest="folder", metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
