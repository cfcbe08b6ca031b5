"""The tables of a report, as rows of texts; Markdown and HTML only write them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.expectation import Verdict
from loadtests.findings import Findings, Part, Row
from loadtests.stats import Summary

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` are as wide as `head`. `note` says what the numbers are."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def tables(found: Findings) -> list[Table]:
    """In the order of the page; a table without rows is left out."""
    all_tables = [
        _conditions(found),
        _expectations(found.verdicts),
        _outcomes(found),
        _latencies(found),
        _levels(found),
        _goodput(found),
        _errors(found),
        _cache(found),
    ]
    return [table for table in all_tables if table.rows]


def headline(found: Findings) -> str:
    """One sentence for whoever reads one sentence."""
    totals, seconds = found.totals, found.window.seconds
    return (
        f"{totals['requests']:.0f} requests in {seconds:.0f} s: {found.tokens_per_s:.0f} tokens/s, "
        f"{totals['ok'] / seconds:.2f} answers/s, {totals['failed']:.0f} failed, {totals['refused']:.0f} refused, "
        f"{totals['abandoned']:.0f} abandoned on purpose."
    )


def _conditions(found: Findings) -> Table:
    facts = found.facts
    machine: dict[str, Any] = facts.get("client") or {}
    told = facts.get("is_same_machine")
    where = "service and client on this machine" if told else "of the client; the service runs on another"
    rows = [
        ("Question", found.workload.question),
        ("Workload", f"{facts['workload']}: {facts['arrival']}"),
        ("Users", ", ".join(f"{kind} {weight}" for kind, weight in facts["users"].items())),
        ("Prompts, tokens", facts["prompt"]),
        ("Answers, tokens", facts["output"]),
        ("Seed", str(facts["seed"])),
        ("Model", _known(facts.get("model"))),
        ("Quantisation", _known(facts.get("quantisation"))),
        ("Backend", _known(facts.get("backend"))),
        *([("Model for vectors", facts["embedding_model"])] if facts.get("embedding_model") else []),
        ("Service", f"{_known(facts.get('service'))} at {facts['host']}"),
        (
            f"Machine ({where})",
            f"{machine.get('cpu')}, {machine.get('cores')} cores ({machine.get('threads')} threads), "
            f"{machine.get('memory_gib')} GiB, {', '.join(machine.get('gpus') or ['no GPU'])}, "
            f"{machine.get('system')}; load average before: {machine.get('load_average')}",
        ),
        ("Versions", ", ".join(f"{name} {number}" for name, number in facts["versions"].items())),
        ("Revision of the load tests", _known(facts.get("revision"))),
        ("Begin", facts.get("started", NONE)),
        (
            "Counted",
            f"{found.window.seconds:.0f} s after {found.window.begin - found.begin:.0f} s of warm-up",
        ),
        ("Client processes", str(facts.get("processes", 1))),
        ("Client late by, p99", _ms(facts.get("lag_p99_s")) + " ms"),
    ]
    return Table("Conditions", ("", ""), rows)


def _known(value: object) -> str:
    return "not told" if value in (None, "") else str(value)


def _expectations(verdicts: list[Verdict]) -> Table:
    rows = [
        (
            verdict.expectation.text,
            "not measured" if verdict.value is None else short(verdict.value),
            "holds" if verdict.holds else "DOES NOT HOLD",
            verdict.expectation.why,
        )
        for verdict in verdicts
    ]
    return Table("Expectations", ("expected", "measured", "", "why"), rows)


def _outcomes(found: Findings) -> Table:
    names = ("requests", "ok", "failed", "refused", "abandoned")
    rows = [(row.kind, *(f"{row.counts[name]:.0f}" for name in names)) for row in found.rows]
    if len(rows) > 1:
        rows.append(("all", *(f"{found.totals[name]:.0f}" for name in names)))
    return Table("Requests", ("user", *names), rows)


_TIMES = (("TTFT, ms", "ttft", 1000), ("ITL, ms", "itl", 1000), ("TPOT, ms", "tpot", 1000), ("e2e, ms", "e2e", 1000),
          ("tokens/s of one answer", "tokens_per_s", 1))  # fmt: skip


def _latencies(found: Findings) -> Table:
    rows = []
    for title, name, factor in _TIMES:
        for row in found.rows:
            if name in row.times:
                rows.append((title, row.kind, *_times(row.times[name], factor), *_errors_beside(row)))
    late = found.workload.arrival.is_open
    if late:
        rows += [
            ("sent late by, ms", row.kind, *_times(row.times["late"], 1000), *_errors_beside(row))
            for row in found.rows
        ]
    return Table(
        "Latencies",
        ("", "user", "N", "mean", "p50", "p90", "p95", "p99", "highest", "failed", "refused"),
        rows,
        "TTFT: request sent to the first piece of text; ITL: every gap between two pieces; TPOT: (last − first) ÷ "
        "(tokens − 1); e2e: sent to the last byte of a whole answer. Percentiles are interpolated between the nearest "
        "ranks. A p99 of the tokens per second is the fastest, not the slowest. N of ITL are gaps, of all others "
        "requests.",
    )


def _times(values: Summary, factor: float) -> tuple[str, ...]:
    shown = (values.mean, values.p50, values.p90, values.p95, values.p99, values.highest)
    return (str(values.n), *(short(value * factor) for value in shown))


def _errors_beside(row: Row) -> tuple[str, str]:
    return f"{row.counts['failed']:.0f}", f"{row.counts['refused']:.0f}"


def _levels(found: Findings) -> Table:
    if not found.run.levels:
        return Table("Levels", (), [])
    return Table(
        "Levels",
        (
            "load", "N", "failed", "refused", "tokens/s", "answers/s", "TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms",
            "ITL p99, ms", "within bounds",
        ),
        [_level(part) for part in found.parts],
        "Only what was sent after each level had settled.",
    )  # fmt: skip


def _level(part: Part) -> tuple[str, ...]:
    cells = []
    for name in ("ttft", "itl"):
        values = part.times.get(name)
        cells += [_ms(values.p50), _ms(values.p99)] if values else [NONE, NONE]
    return (
        part.label,
        str(part.requests),
        str(part.failed),
        str(part.refused),
        short(part.tokens_per_s),
        short(part.requests_per_s),
        *cells,
        NONE if part.good_share is None else f"{part.good_share:.1%}",
    )


def _goodput(found: Findings) -> Table:
    rows = []
    for row in found.rows:
        asked = row.counts["requests"] - row.counts["abandoned"]
        if asked and row.kind != "over_limit":
            good = row.counts["good"]
            rows.append(
                (
                    row.kind,
                    f"{asked:.0f}",
                    f"{row.counts['ok']:.0f}",
                    f"{good:.0f}",
                    f"{good / asked:.1%}",
                    short(good / found.window.seconds),
                )
            )
    return Table(
        "Goodput",
        ("user", "asked", "answered", "within the bounds", "share of asked", "good answers/s"),
        rows,
        f"Bounds: {found.workload.bounds.text}. An answer counts if it keeps each that it has a time for.",
    )


def _errors(found: Findings) -> Table:
    rows = [(kind, outcome, str(number), detail) for outcome, kind, number, detail in found.errors]
    return Table("Failures and refusals", ("kind", "outcome", "how many", "the first one"), rows)


def _cache(found: Findings) -> Table:
    rows = []
    for row in found.rows:
        asked = row.counts["prompt_tokens"]
        if not asked or row.kind == "embedding":
            continue
        ok = row.counts["ok"] or 1
        rows.append(
            (
                row.kind,
                f"{asked:.0f}",
                f"{row.counts['cached_tokens']:.0f}",
                f"{row.counts['cached_tokens'] / asked:.1%}",
                f"{row.counts['completion_tokens']:.0f}",
                f"{row.counts['completion_tokens'] / ok:.1f}",
            )
        )
    return Table(
        "Tokens, as the service counts them",
        ("user", "of prompts", "of those from the cache", "share", "of answers", "per answer"),
        rows,
    )


def _ms(seconds: float | None) -> str:
    return NONE if seconds is None else short(seconds * 1000)


def short(value: float) -> str:
    """Three figures, without an exponent."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
