"""What a series of runs showed, as the section of docs/benchmarks.md: `python -m loadtests page FOLDER`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.findings import Findings, Row, look_at
from loadtests.page import fill, markdown_table
from loadtests.run_folder import RUN, read_run
from loadtests.series import memory_of
from loadtests.stats import Summary
from loadtests.tables import NONE, short, tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- load:series -->", "<!-- /load:series -->"
GAPS = 3


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of the series. `memory` is what its service had resident, as `memory_noted` says."""

    found: Findings
    memory: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that is not as it was asked to be. `share` of all that could be."""

    share: float
    text: str


def read_series_folder(folder: Path) -> list[Ran]:
    """In the order in which they ran. Raises: ValueError where there is none, or one has not ended."""
    ran = []
    for path in folder.glob(f"*/{RUN}"):
        told = memory_of(path.parent)
        memory = (told["begin_mib"], told["end_mib"]) if told else None
        ran.append(Ran(look_at(read_run(path.parent)), memory))
    if not ran:
        raise ValueError(f"{folder} holds no run")
    return sorted(ran, key=lambda one: one.found.begin)


def write_page(folder: Path, page: Path = PAGE) -> list[str]:
    """Put the section into the page; gives the names of the runs. Raises: ValueError, OSError."""
    ran = read_series_folder(folder)
    page.write_text(fill(page.read_text(encoding="utf-8"), BEGIN, END, section(ran)), encoding="utf-8")
    return [one.found.facts["workload"] for one in ran]


def section(ran: Sequence[Ran]) -> str:
    parts = [_latencies(ran), _unmet(ran), *_levels(ran), *_gaps(ran), _conditions(ran)]
    return "\n\n".join(part for part in parts if part)


def _latencies(ran: Sequence[Ran]) -> str:
    head = [
        *("Workload · user", "N", "failed", "refused", "TTFT p50 / p99, ms", "ITL p50 / p99, ms"),
        *("e2e p50 / p99, ms", "tokens/s, all", "within the bounds", "memory, MiB"),
    ]
    rows = []
    for one in ran:
        found = one.found
        memory = f"{one.memory[0]:.0f} → {one.memory[1]:.0f}" if one.memory else NONE
        for number, row in enumerate(r for r in found.rows if r.kind not in ("models", "over_limit")):
            asked, good = row.counts["requests"] - row.counts["abandoned"], row.counts["good"]
            rows.append(
                [
                    f"{found.facts['workload']} · {row.kind}",
                    f"{row.counts['requests']:.0f}",
                    f"{row.counts['failed']:.0f}",
                    f"{row.counts['refused']:.0f}",
                    *(_pair(row.times.get(name)) for name in ("ttft", "itl", "e2e")),
                    short(found.tokens_per_s) if number == 0 else "",
                    f"{good / asked:.0%}" if asked else NONE,
                    memory if number == 0 else "",
                ]
            )
    return markdown_table(head, rows, is_numeric=True)


def _pair(times: Summary | None) -> str:
    return f"{short(times.p50 * 1000)} / {short(times.p99 * 1000)}" if times else NONE


def _unmet(ran: Sequence[Ran]) -> str:
    verdicts = [(one.found.facts["workload"], verdict) for one in ran for verdict in one.found.verdicts]
    lines = [
        f"- **{name}**: {verdict.expectation.text}: "
        f"{'not measured' if verdict.value is None else short(verdict.value)} ({verdict.expectation.why})"
        for name, verdict in verdicts
        if not verdict.holds
    ]
    held = f"Of {len(verdicts)} expectations {len(verdicts) - len(lines)} held."
    return "\n".join([held, *(["", *lines] if lines else [])])


def _levels(ran: Sequence[Ran]) -> list[str]:
    parts = []
    for one in ran:
        for table in tables(one.found):
            if table.title == "Levels":
                levels = markdown_table(table.head, table.rows, is_numeric=True)
                parts.append(f"{one.found.facts['workload']}: {one.found.workload.question}\n\n{levels}")
    return parts


def _gaps(ran: Sequence[Ran]) -> list[str]:
    found = gaps([one.found for one in ran])
    if not found:
        return ["No gap: every expectation held, and every answer was within its workload's bounds."]
    lines = [f"{number}. {gap.text}" for number, gap in enumerate(found[:GAPS], 1)]
    return ["The largest gaps between what was asked and what was seen:", "\n".join(lines)]


def gaps(runs: Sequence[Findings]) -> list[Gap]:
    """The largest first: expectations that do not hold, then callers whose answers were too slow or failed. Whoever was
    refused as the workload expects counts as neither."""
    unmet, slow = [], []
    for found in runs:
        name = found.facts["workload"]
        for verdict in found.verdicts:
            if not verdict.holds:
                value = "not measured" if verdict.value is None else short(verdict.value)
                unmet.append(Gap(1.0, f"{name}: {verdict.expectation.text} was expected; it is {value}"))
        for row in found.rows:
            if row.kind != "over_limit" and (gap := _too_slow(found, row)) is not None:
                slow.append(gap)
    return [*unmet, *sorted(slow, key=lambda gap: -gap.share)]


def _too_slow(found: Findings, row: Row) -> Gap | None:
    ok, good, failed = (row.counts[name] for name in ("ok", "good", "failed"))
    served, outside = ok + failed, ok - good + failed
    if not served or not outside:
        return None
    text = (
        f"{found.facts['workload']}, {row.kind}: {outside:.0f} of {served:.0f} answers ({outside / served:.0%}) "
        f"outside {found.workload.bounds.text}, {failed:.0f} of them failed"
    )
    return Gap(outside / served, text)


def _conditions(ran: Sequence[Ran]) -> str:
    facts = ran[0].found.facts
    machine = facts["client"]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    revisions = sorted({str(one.found.facts.get("revision")) for one in ran})
    seeds = ", ".join(f"{one.found.facts['workload']} {one.found.facts['seed']}" for one in ran)
    late = max(one.found.facts.get("lag_p99_s") or 0.0 for one in ran)
    lines = [
        f"Command: `make load-all`, {facts.get('started', NONE)}; each run on a service just started, with "
        "the settings as shipped where its workload asks for no others",
        f"Machine, client and service on it: {machine['cpu']}, {machine['cores']} cores ({machine['threads']} "
        f"threads), {machine['memory_gib']} GiB, {', '.join(machine.get('gpus') or ['no GPU'])}, {machine['system']}; "
        f"load average before: {machine.get('load_average')}",
        f"Model: {facts['model']}, {facts['quantisation']}; service {facts.get('service')}; revision "
        f"{', '.join(revisions)}; {versions}",
        f"Client late by, p99, at most: {short(late * 1000)} ms; seeds: {seeds}",
        "N of TTFT, ITL and e2e: requests sent after the warm-up; N of ITL is every gap of these. Memory: of all "
        "processes of the service, after the warm-up and at the end",
    ]
    return "\n".join(f"- {line}" for line in lines)
