"""A run, looked at: what both forms of the report say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from loadtests.expectation import Verdict, judge
from loadtests.measures import (
    Window,
    counts,
    distributions,
    errors_by_kind,
    measures,
    started_in,
    tokens_per_s,
)
from loadtests.record import Record
from loadtests.run_folder import Run, workload_of
from loadtests.stats import Summary
from loadtests.workload import Workload

PARTS = 12
"""Into which a run without levels is cut for its throughput against latency."""
LEAST_PART_S = 5.0


@dataclass(frozen=True, slots=True)
class Part:
    """A level of a ramp, or a part of the time. `label` is what its point is called."""

    label: str
    window: Window
    tokens_per_s: float
    requests_per_s: float
    good_share: float | None
    requests: int
    failed: int
    refused: int
    times: dict[str, Summary]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of user in the table of latencies: N and errors stand beside every time."""

    kind: str
    counts: dict[str, float]
    times: dict[str, Summary]


@dataclass(slots=True)
class Findings:
    """`window` is what counts; `counted` are the requests that were sent in it."""

    run: Run
    workload: Workload
    begin: float
    window: Window
    counted: list[Record]
    rows: list[Row]
    parts: list[Part]
    errors: list[tuple[str, str, int, str]]
    tokens_per_s: float
    totals: dict[str, float]
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why the numbers may say less than they seem to."""

    @property
    def facts(self) -> dict[str, Any]:
        return self.run.facts

    @property
    def holds(self) -> bool:
        """Whether every expectation does, and anything was measured at all."""
        return bool(self.counted) and all(verdict.holds for verdict in self.verdicts)


def look_at(run: Run) -> Findings:
    """Raises: ValueError for a run that has not ended or has no record; WorkloadError."""
    workload = workload_of(run.facts)
    begin = run.facts["begin"]
    end = run.facts.get("end") or max((r.start for r in run.records), default=begin)
    window = Window(min(begin + workload.warmup_s, end), end)
    if window.seconds <= 0:
        raise ValueError(f"nothing was measured after the warm-up of {workload.warmup_s:g} s")
    counted = started_in(run.records, window)
    found = Findings(
        run=run,
        workload=workload,
        begin=begin,
        window=window,
        counted=counted,
        rows=_rows(counted, workload),
        parts=_parts(run, window, workload),
        errors=errors_by_kind(counted),
        tokens_per_s=tokens_per_s(run.records, window),
        totals=counts(counted, workload.bounds),
    )
    names = {
        "running_after": "running_after",
        "capacity_per_s": "capacity_per_s",
        "client.lag.p99": "lag_p99_s",
    }
    of_the_run = {
        name: float(run.facts[key]) for name, key in names.items() if run.facts.get(key) is not None
    }
    found.verdicts = judge(workload.expect, measures(run.records, workload, window, of_the_run))
    found.problems = _problems(found)
    return found


def _rows(records: Sequence[Record], workload: Workload) -> list[Row]:
    rows = []
    for kind in [user.kind for user in workload.users]:
        of_kind = [record for record in records if record.user == kind]
        if of_kind:
            rows.append(Row(kind, counts(of_kind, workload.bounds), distributions(of_kind)))
    return rows


def _parts(run: Run, window: Window, workload: Workload) -> list[Part]:
    if run.levels:
        unit = "/s" if workload.arrival.is_open else ""
        windows = [(f"{level.load:g}{unit}", Window(level.begin, level.end)) for level in run.levels]
    else:
        number = max(1, min(PARTS, int(window.seconds / LEAST_PART_S)))
        width = window.seconds / number
        edges = [window.begin + i * width for i in range(number + 1)]
        windows = [(f"{b - run.facts['begin']:.0f} s", Window(b, e)) for b, e in pairwise(edges)]
    parts = []
    for label, part in windows:
        records = started_in(run.records, part)
        of = counts(records, workload.bounds)
        asked = of["requests"] - of["abandoned"]
        parts.append(
            Part(
                label,
                part,
                tokens_per_s(run.records, part),
                of["ok"] / part.seconds,
                of["good"] / asked if asked else None,
                len(records),
                int(of["failed"]),
                int(of["refused"]),
                distributions(records),
            )
        )
    return parts


def _problems(found: Findings) -> list[str]:
    problems = []
    lag, ttft = found.facts.get("lag_p99_s"), [r.times["ttft"].p50 for r in found.rows if "ttft" in r.times]
    if lag is not None and (lag > 0.05 or (ttft and lag > 0.25 * min(ttft))):
        problems.append(
            f"The client itself was late by {lag * 1000:.0f} ms (p99): short times say more about it than about the "
            "service. Give it a machine of its own, or several processes."
        )
    for kind, why in (found.facts.get("not_served") or {}).items():
        problems.append(f"Users of kind {kind} had nothing to do: {why}.")
    for row in found.rows:
        times = row.times.get("ttft") or row.times.get("e2e")
        if times is not None and times.n < 100:
            problems.append(f"{row.kind}: of {times.n} requests a p99 is next to the slowest one.")
    if found.run.levels and len(found.run.levels) == len(found.workload.arrival.levels):
        problems.append(
            "The ramp ended with its levels and not by saturation: more load may bring more tokens."
        )
    return problems
