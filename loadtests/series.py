"""Several workloads one after the other, each on a service of its own: `make load-all`, and what it leaves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from loadtests.own_service import LIMITED_TOKEN, TOKEN, OwnService, first_answer, own_service
from loadtests.report import Report
from loadtests.run import Options, run_workload
from loadtests.run_folder import write_json
from loadtests.section import Section, WorkloadError
from loadtests.target import PREFIX, TargetError
from loadtests.workload import Workload, load_workload

FILE = Path(__file__).parent / "series.yaml"
MEMORY = "memory.json"
MEMORY_EVERY_S = 5.0
AROUND_S = 12.0
"""Beside a run's load: to start the service and locust, to let requests end, to report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run. `settings` are the service's LLM_* variables."""

    name: str
    workload: Workload
    settings: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        capacity = self.workload.arrival.capacity
        return self.workload.duration_s + (capacity.probe_s if capacity else 0.0) + AROUND_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A checked file of runs."""

    model: str
    quantisation: str
    entries: tuple[Entry, ...]

    @property
    def seconds(self) -> float:
        return sum(entry.seconds for entry in self.entries)


def read_series(path: Path = FILE) -> Series:
    """Raises: WorkloadError beginning with the place of what is wrong; OSError."""
    try:
        section = Section(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise WorkloadError(f"{path}: it is not YAML: {' '.join(str(error).split())}") from None
    entries = []
    for number, raw in enumerate(section.items("runs")):
        run = Section(raw, f"runs[{number}]")
        workload = load_workload(run.text("workload"))
        if run.has("duration_s"):
            workload = workload.lasting(run.number("duration_s", above=0))
        run.raw("duration_s")
        settings = run.section("settings", {})
        told = {name: settings.text(name) for name in settings.names()}
        run.end()
        entries.append(Entry(name=workload.name, workload=workload, settings=told))
    series = Series(
        model=section.text("model"), quantisation=section.text("quantisation"), entries=tuple(entries)
    )
    section.end()
    return series


def run_series(series: Series, *, python: str, out: Path, only: Sequence[str] = ()) -> list[Report]:
    """A report per run, in the folder of its name. `python` has bentoml. A run that cannot be made is told, and the
    next one follows; an interrupt ends them all.

    Raises: TargetError when none could be made.
    """
    entries = [entry for entry in series.entries if not only or entry.name in only]
    total, begin, ahead = sum(entry.seconds for entry in entries), time.monotonic(), 0.0
    print(
        f"{len(entries)} runs, about {total / 60:.0f} min in all: {', '.join(e.name for e in entries)}",
        flush=True,
    )
    reports = []
    for number, entry in enumerate(entries, 1):
        print(
            f"\n== {number} of {len(entries)}: {entry.name}: {entry.workload.question}\n"
            f"{(time.monotonic() - begin) / 60:.0f} min gone, about {(total - ahead) / 60:.0f} to go",
            flush=True,
        )
        ahead += entry.seconds
        try:
            reports.append(_run(entry, series, python=python, folder=out / entry.name))
        except (TargetError, ValueError) as error:
            print(f"!! {entry.name}: {error}", flush=True)
            continue
        if reports[-1].is_interrupted:
            break
    if not reports:
        raise TargetError("none of the runs could be made")
    return reports


def _run(entry: Entry, series: Series, *, python: str, folder: Path) -> Report:
    folder.mkdir(parents=True, exist_ok=True)
    backend = {"LLM_DEFAULT_BACKEND": "llamacpp", **entry.settings}
    told = {
        "TOKEN": TOKEN,
        "OVER_LIMIT_TOKEN": LIMITED_TOKEN,
        "MODEL": series.model,
        "QUANTISATION": series.quantisation,
        "DURATION_S": f"{entry.workload.duration_s:g}",
    }
    with own_service(python, folder / "service", backend, limits={}) as service:
        first_answer(service, series.model)
        options = Options(
            host=service.host,
            out=folder,
            environment={PREFIX + name: value for name, value in told.items()},
        )
        with memory_noted(service, folder / MEMORY, begin_s=entry.workload.warmup_s):
            return run_workload(entry.name, entry.workload, options)


@contextmanager
def memory_noted(service: OwnService, path: Path, *, begin_s: float) -> Iterator[None]:
    """Write what the service had resident after `begin_s` and at the end of the block, in MiB."""
    samples: list[float] = []
    over = threading.Event()

    def sample() -> None:
        if over.wait(begin_s):
            return
        samples.append(service.memory_mib())
        while not over.wait(MEMORY_EVERY_S):
            samples.append(service.memory_mib())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        samples.append(service.memory_mib())
        write_json(path, {"begin_mib": samples[0], "end_mib": samples[-1], "highest_mib": max(samples)})


def memory_of(folder: Path) -> Mapping[str, float] | None:
    """What `memory_noted` left there."""
    path = folder / MEMORY
    if not path.exists():
        return None
    told: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return told
