"""Runs a workload: locust as a child process, then the report. `python -m loadtests run WORKLOAD --host URL`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtests.findings import look_at
from loadtests.report import Report, write_report
from loadtests.run_folder import read_run
from loadtests.target import PREFIX, TargetError, find_target
from loadtests.workload import Workload

LOCUSTFILE = Path(__file__).parent / "locustfile.py"
SPARE_S = 120.0
"""Beside the workload's time: to start, to let the last requests end, to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run. `environment` are more LOADTESTS_* variables; `locust` more of locust's own arguments."""

    host: str
    out: Path
    processes: int = 1
    environment: Mapping[str, str]
    locust: Sequence[str] = ()


def run_workload(name: str, workload: Workload, options: Options) -> Report:
    """Load the service and report. Measures a capacity first where the workload asks for one.

    An interrupt ends the load, and what came until then is reported.

    Raises: TargetError when locust ends without having run it; ValueError when nothing was measured.
    """
    find_target(
        options.host, {**os.environ, **options.environment}
    )  # else every user would find out by himself
    environment = dict(options.environment)
    if workload.arrival.capacity is not None and PREFIX + "RATE" not in environment:
        capacity = _measured_capacity(name, workload, options)
        environment[PREFIX + "CAPACITY"] = f"{capacity:.6f}"
        environment[PREFIX + "RATE"] = f"{capacity * workload.arrival.capacity.times:.6f}"
        print(
            f"capacity: {capacity:.2f} answers/s; the load is {environment[PREFIX + 'RATE']} requests/s",
            flush=True,
        )
    is_interrupted = _run_locust(name, workload, options, environment, options.out)
    return replace(write_report(options.out), is_interrupted=is_interrupted)


def _measured_capacity(name: str, workload: Workload, options: Options) -> float:
    probe = workload.probe()
    print(f"measuring the capacity: {probe.arrival.text}, {probe.duration_s:g} s", flush=True)
    folder = options.out / "probe"
    if _run_locust(name, probe, options, {**options.environment, PREFIX + "PROBE": "1"}, folder):
        raise KeyboardInterrupt
    found = look_at(read_run(folder))
    capacity = found.totals["ok"] / found.window.seconds
    if not capacity:
        raise TargetError(f"no request was answered while the capacity was measured: {found.errors[:3]}")
    return capacity


def _run_locust(
    name: str, workload: Workload, options: Options, environment: Mapping[str, str], folder: Path
) -> bool:
    """Whether it was interrupted. Raises: TargetError."""
    folder.mkdir(parents=True, exist_ok=True)
    arrival = workload.arrival
    command = [
        *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", options.host),
        *("--headless", "--only-summary", "--exit-code-on-error", "0", "--loglevel", "WARNING"),
        *(() if arrival.kind == "ramp" else ("-u", str(arrival.users), "-r", str(arrival.users))),
        *(("--processes", str(options.processes)) if options.processes > 1 else ()),
        *options.locust,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(LOCUSTFILE.parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        ),
        **environment,
        PREFIX + "WORKLOAD": name,
        PREFIX + "OUT": str(folder),
        PREFIX + "QUIET": "1",
        PREFIX + "ENDS": "1",
    }
    # A session of its own: a Ctrl-C reaches locust once, from here, and not a second time while it ends.
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    is_interrupted = False
    try:
        try:
            code = process.wait(workload.duration_s + workload.timeout_s + SPARE_S)
        except KeyboardInterrupt:
            is_interrupted = True
            process.terminate()
            code = process.wait(SPARE_S)
    except subprocess.TimeoutExpired:
        raise TargetError("locust did not end") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code and not is_interrupted:
        raise TargetError(f"locust ended with {code}")
    return is_interrupted
