"""Records to numbers: what a report shows and what expectations are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from loadtests.record import Record
from loadtests.stats import Summary, summary
from loadtests.workload import Bounds, Workload

AT_ONCE_S = 0.0001
"""Pieces closer than this arrived together: one read brought both."""

_ONE: dict[str, Callable[[Record], float | None]] = {
    "ttft": lambda record: record.ttft,
    "tpot": lambda record: record.tpot,
    "e2e": lambda record: record.e2e if record.outcome == "ok" else None,
    "tokens_per_s": lambda record: record.tokens_per_s,
    "late": lambda record: record.late,
}


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts, in Unix time."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def holds(self, at: float) -> bool:
        return self.begin <= at < self.end


def started_in(records: Iterable[Record], window: Window) -> list[Record]:
    return [record for record in records if window.holds(record.start)]


def distributions(records: Iterable[Record]) -> dict[str, Summary]:
    """TTFT, ITL, TPOT, e2e, tokens per second and lateness, each where something was measured."""
    kept = list(records)
    found: dict[str, Summary | None] = {
        name: summary(value for record in kept if (value := one(record)) is not None)
        for name, one in _ONE.items()
    }
    found["itl"] = summary(gap for record in kept for gap in record.gaps)
    return {name: value for name, value in found.items() if value is not None}


def is_good(record: Record, bounds: Bounds) -> bool:
    """Whether it was answered, and within each bound that it has a time for."""
    if record.outcome != "ok":
        return False
    pairs = ((record.ttft, bounds.ttft_s), (record.tpot, bounds.tpot_s), (record.e2e, bounds.e2e_s))
    return all(time is None or bound is None or time <= bound for time, bound in pairs)


def counts(records: Sequence[Record], bounds: Bounds) -> dict[str, float]:
    """Every name of `expectation.COUNTS`."""
    outcomes = Counter(record.outcome for record in records)
    later = [record for record in records if record.turn > 1 and record.prompt_tokens is not None]
    whole = [record for record in records if record.outcome == "ok" and record.completion_tokens is not None]
    return {
        "requests": len(records),
        **{name: outcomes[name] for name in ("ok", "refused", "failed", "abandoned")},
        "good": sum(is_good(record, bounds) for record in records),
        "pieces": sum(record.pieces for record in whole if record.ttft is not None),
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in records),
        "cached_tokens": sum(record.cached_tokens or 0 for record in records),
        "completion_tokens": sum(record.completion_tokens or 0 for record in whole),
        "max_tokens": sum(record.max_tokens or 0 for record in whole),
        "gaps": sum(len(record.gaps) for record in records),
        "gaps_at_once": sum(gap < AT_ONCE_S for record in records for gap in record.gaps),
        "later_turns.prompt_tokens": sum(record.prompt_tokens or 0 for record in later),
        "later_turns.cached_tokens": sum(record.cached_tokens or 0 for record in later),
    }


def measures(
    records: Sequence[Record], workload: Workload, window: Window, of_the_run: Mapping[str, float]
) -> dict[str, float]:
    """Every measure that exists, by the name that expectations use. `of_the_run` is what records do not hold."""
    counted = started_in(records, window)
    found = {**_of(counted, workload.bounds, window, ""), **of_the_run}
    for kind in {record.user for record in counted}:
        of_kind = [record for record in counted if record.user == kind]
        found |= _of(of_kind, workload.bounds, window, f"{kind}.")
    middle = (window.begin + window.end) / 2
    pieces = [at for record in records for at in record.piece_times()]
    found["first_half.pieces"] = sum(window.begin <= at < middle for at in pieces)
    found["second_half.pieces"] = sum(middle <= at < window.end for at in pieces)
    return found


def _of(records: Sequence[Record], bounds: Bounds, window: Window, prefix: str) -> dict[str, float]:
    found: dict[str, float] = {prefix + name: value for name, value in counts(records, bounds).items()}
    for name in ("ok", "good"):
        found[f"{prefix}{name}_per_s"] = found[prefix + name] / window.seconds
    for name, values in distributions(records).items():
        for item in fields(Summary):
            found[f"{prefix}{name}.{item.name}"] = getattr(values, item.name)
    return found


def tokens_per_s(records: Iterable[Record], window: Window) -> float:
    """Tokens that arrived inside the window, by its seconds.

    A stream's tokens, as the server counts them, are spread evenly over its pieces; of a stream without a count each
    piece is a token. A whole answer's tokens count when it ends.
    """
    total = 0.0
    for record in records:
        if record.ttft is not None:
            inside = sum(window.holds(at) for at in record.piece_times())
            total += inside * ((record.completion_tokens or record.pieces) / record.pieces)
        elif record.outcome == "ok" and record.e2e is not None and window.holds(record.start + record.e2e):
            total += record.completion_tokens or 0
    return total / window.seconds


def errors_by_kind(records: Iterable[Record]) -> list[tuple[str, str, int, str]]:
    """(outcome, kind, how many, the first one's words) of what failed or was refused, the most frequent first."""
    number: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for record in records:
        if record.error is not None:
            key = (record.outcome, record.error)
            number[key] += 1
            first.setdefault(key, record.detail or "")
    return [(outcome, kind, count, first[outcome, kind]) for (outcome, kind), count in number.most_common()]


def in_flight(records: Iterable[Record], at: float) -> int:
    """Requests that were sent and not ended at a time; of those without an end the last piece counts."""
    return sum(record.start <= at < ended_at(record) for record in records)


def ended_at(record: Record) -> float:
    """Unix time of the last that was seen of it."""
    if record.e2e is not None:
        return record.start + record.e2e
    return record.start + (record.ttft or 0.0) + sum(record.gaps)
