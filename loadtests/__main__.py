"""`python -m loadtests list | run | smoke | series | report | page`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import console
from loadtests.report import Report, write_report
from loadtests.run import Options, run_workload
from loadtests.section import WorkloadError
from loadtests.series import FILE, read_series, run_series
from loadtests.series_page import PAGE, write_page
from loadtests.smoke import smoke
from loadtests.tables import headline, short
from loadtests.target import PREFIX, TargetError, number_setting
from loadtests.workload import Workload, available, load_workload

EXIT_UNMET, EXIT_UNUSABLE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every expectation holds. 1: one does not. 2: it could not be run. 130: it was interrupted."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.act(options)
    except (WorkloadError, TargetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except BrokenPipeError:
        raise  # nobody reads what is printed: `console` ends that
    except (OSError, ValueError) as error:
        print(f"error: no report could be made: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the workloads and their questions")
    listing.set_defaults(act=_list)

    run = commands.add_parser("run", help="load a service that runs already")
    run.add_argument("workload", nargs="?", default=os.environ.get(PREFIX + "WORKLOAD") or "steady-chat")
    run.add_argument("--host", default="http://127.0.0.1:14011", help="without /v1 (default: %(default)s)")
    run.add_argument("--model", help="default: the first that is listed with the capability chat")
    run.add_argument("--embedding-model", help="default: the first with the capability embeddings")
    run.add_argument("--quantisation", help="of the model, for the report, where the service does not tell")
    run.add_argument("--duration", type=float, metavar="SECONDS", help="in place of the workload's")
    run.add_argument("--rate", type=float, help="requests per second, in place of a measured capacity")
    run.add_argument("--processes", type=int, default=1, help="of locust (default: %(default)s)")
    run.add_argument("--out", type=Path, help="folder of the run (default: .cache/loadtests/TIME-WORKLOAD)")
    run.add_argument("locust", nargs="*", help="after --: arguments for locust itself")
    run.set_defaults(act=_run)

    brief = commands.add_parser("smoke", help="start the service, load it for a minute, judge by ratios")
    brief.add_argument("--python", required=True, help="the interpreter that has bentoml")
    brief.add_argument("--out", type=Path, default=Path(".cache/loadtests/smoke"))
    brief.set_defaults(act=_smoke)

    series = commands.add_parser(
        "series", help="the long workloads, one after the other, each on a fresh service"
    )
    series.add_argument("--python", required=True, help="the interpreter that has bentoml")
    series.add_argument("--out", type=Path, default=Path(".cache/loadtests/series"))
    series.add_argument("--only", type=lambda text: text.split(","), default=(), metavar="NAME,NAME,…")
    series.add_argument(
        "--file", type=Path, default=FILE, help="of the runs (default: loadtests/series.yaml)"
    )
    series.set_defaults(act=_series)

    page = commands.add_parser("page", help="put what a series showed into docs/benchmarks.md")
    page.add_argument("folder", type=Path)
    page.add_argument("--page", type=Path, default=PAGE)
    page.set_defaults(act=_page)

    report = commands.add_parser("report", help="make the report of a run once more")
    report.add_argument("folder", type=Path)
    report.set_defaults(act=_report)
    return parser


def _list(_: argparse.Namespace) -> int:
    for name in available():
        workload = load_workload(name)
        print(f"{name:24} {workload.question}\n{'':24} {workload.arrival.text}; {workload.duration_s:g} s")
    return 0


def _run(options: argparse.Namespace) -> int:
    given = {
        "MODEL": options.model,
        "EMBEDDING_MODEL": options.embedding_model,
        "QUANTISATION": options.quantisation,
        "DURATION_S": options.duration,
        "RATE": options.rate,
    }
    environment = {PREFIX + name: str(value) for name, value in given.items() if value is not None}
    for name in ("RATE", "DURATION_S"):
        number_setting(name, {**os.environ, **environment})
    workload: Workload = load_workload(options.workload)
    if options.duration is not None:
        workload = workload.lasting(options.duration)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = options.out or Path(".cache/loadtests") / f"{stamp}-{workload.name}"
    print(
        f"{workload.name}: {workload.question}\n{workload.arrival.text}, against {options.host}", flush=True
    )
    report = run_workload(
        options.workload,
        workload,
        Options(
            host=options.host,
            out=out,
            processes=options.processes,
            environment=environment,
            locust=options.locust,
        ),
    )
    return tell(report)


def tell(report: Report) -> int:
    """The gist of a report on standard output, and the exit status that it deserves."""
    found = report.findings
    print(f"\n{headline(found)}")
    for outcome, kind, number, detail in found.errors[:8]:
        print(f"  {number} {outcome}: {kind}: {detail}")
    for problem in found.problems:
        print(f"  mind: {problem}")
    for verdict in found.verdicts:
        value = "not measured" if verdict.value is None else short(verdict.value)
        mark = "ok  " if verdict.holds else "FAIL"
        print(f"  {mark} {verdict.expectation.text}: {value}")
    print(f"report: {report.html}", flush=True)
    if report.is_interrupted:
        return EXIT_INTERRUPTED
    return 0 if found.holds else EXIT_UNMET


def _smoke(options: argparse.Namespace) -> int:
    reports = smoke(python=options.python, out=options.out)
    return max([tell(report) for report in reports], default=EXIT_UNUSABLE)


def _series(options: argparse.Namespace) -> int:
    series = read_series(options.file)
    known = [entry.name for entry in series.entries]
    for name in options.only:
        if name not in known:
            raise WorkloadError(f"--only {name}: the series has {', '.join(known)}")
    reports = run_series(series, python=options.python, out=options.out, only=options.only)
    status = max(tell(report) for report in reports)
    return status or int(len(reports) < len(options.only or known))


def _page(options: argparse.Namespace) -> int:
    names = write_page(options.folder, options.page)
    print(f"{options.page.name}: {', '.join(names)}")
    return 0


def _report(options: argparse.Namespace) -> int:
    return tell(write_report(options.folder))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends this ends what it has started
    console.run(main)
