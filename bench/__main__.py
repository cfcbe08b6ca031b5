"""The command: `peers` for every comparison, one subcommand per measurement, `all` for every one, `report` for the page
of results. Without a subcommand it is `peers`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import console
from bench.aborts import ABORTS
from bench.compare import COMPARE, COMPARE_PYTHON
from bench.control import CONTROL
from bench.echo import ECHO
from bench.embeddings import EMBEDDINGS
from bench.litellm_proxy import LITELLM
from bench.litellm_soak import LITELLM_SOAK
from bench.load import LoadFailed
from bench.machine import take_niceness, take_priority, versions
from bench.measurement import PeerMissing, Setup
from bench.ours import ROOT
from bench.passthrough import PASSTHROUGH
from bench.peers import compare_all
from bench.processes import ServerFailed
from bench.relay import RELAY
from bench.report import PAGE, report
from bench.result import write
from bench.run import Conditions, run
from bench.run import arguments as of_its_own
from bench.shared_prefix import SHARED_PREFIX
from bench.start import START
from bench.structured import STRUCTURED
from bench.vllm_server import VLLM
from loadtests.hardware import machine

MEASUREMENTS = {
    each.name: each
    for each in (
        START,
        COMPARE,
        COMPARE_PYTHON,
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
        STRUCTURED,
    )
}
OF_THIS_RUN_ONLY = ("--llama-server", "--out", "--proxy", "--python", "--weights")
"""Paths say nothing about a measurement; the command in a report goes without them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 when a measurement failed or had errors."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["peers"]
    options = _parser().parse_args(given)
    if options.name == "report":
        return _write_page(options.folder)
    setup = Setup(options.out.resolve(), options.priority, options.llama_server, options.seed)
    about = machine()
    # Asked before the priority is taken: the commands that tell them would inherit it.
    known = versions()
    scheduling = "usual"
    if options.priority:
        scheduling = take_priority(options.priority)
    elif options.nice:
        scheduling = take_niceness(options.nice)
    conditions = Conditions(
        command=shown_command(given), machine=about, versions=known, scheduling=scheduling
    )
    if options.name == "peers":
        return _peers(options, setup, conditions)
    failed = False
    for measurement in MEASUREMENTS.values() if options.name == "all" else [MEASUREMENTS[options.name]]:
        mine = options
        if options.name == "all":
            mine = of_its_own(measurement, measurement.quick if options.quick else ())
        setup.say(f"== {measurement.name}: {measurement.title}")
        try:
            result = run(measurement, mine, setup, conditions)
        except PeerMissing as missing:
            if options.name != "all":
                raise
            setup.say(f"!! {measurement.name} is left out: {missing}")
            continue
        except (ServerFailed, LoadFailed) as error:
            setup.say(f"{measurement.name} failed: {error}")
            failed = True
            continue
        print(f"\n{write(result, setup.out, measurement.table)}\n", flush=True)
        failed |= bool(result.errors)
    return int(failed)


def _peers(options: argparse.Namespace, setup: Setup, conditions: Conditions) -> int:
    chosen = [each for each in MEASUREMENTS.values() if each.ratios is not None]
    if options.only:
        chosen = [each for each in chosen if each.name in options.only]
    done, status = compare_all(
        chosen, setup, conditions, quick=options.quick, alternations=options.alternations
    )
    if options.quick or not done:
        setup.say(f"{PAGE.name} stays as it is")
        return status
    return _write_page(setup.out, done) or status


def _write_page(folder: Path, only: Sequence[str] | None = None) -> int:
    try:
        names = report(folder, MEASUREMENTS.values(), PAGE, only)
    except (OSError, ValueError) as error:
        print(f"{PAGE.name}: {error}", file=sys.stderr)
        return 1
    print(f"{PAGE.name}: {', '.join(names) or 'no results found'}")
    return 0 if names else 1


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


def _peers_named(text: str) -> list[str]:
    """For argparse. Raises: ValueError for a name that is no comparison."""
    names = text.split(",")
    for name in names:
        if name not in MEASUREMENTS or MEASUREMENTS[name].ratios is None:
            raise ValueError(name)
    return names


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
    against = commands.add_parser(
        "peers",
        help="every comparison with another server, and one table of them in the page",
        parents=[shared],
    )
    against.add_argument("--quick", action="store_true", help="a smoke test: the numbers mean nothing")
    against.add_argument("--only", type=_peers_named, metavar="NAME,NAME,…", help="some of them")
    against.add_argument(
        "--alternations", type=int, metavar="N", help="turns per side, in place of each one's own"
    )
    everything = commands.add_parser("all", help="every measurement, one after the other", parents=[shared])
    everything.add_argument("--quick", action="store_true", help="a smoke test: the numbers mean nothing")
    page = commands.add_parser("report", help=f"put results into {PAGE.name}")
    page.add_argument("--from", type=Path, required=True, dest="folder", metavar="DIR")
    return parser


if __name__ == "__main__":
    console.run(main)
