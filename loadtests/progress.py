"""The line that says, every few seconds, how a run goes."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.measures import Window, tokens_per_s
from loadtests.record import Record
from loadtests.stats import Summary, summary

EVERY_S = 5.0


class Progress:
    """Takes records as they come in, and tells about those of the last interval."""

    def __init__(self, begin: float, duration_s: float) -> None:
        self._begin = begin
        self._duration_s = duration_s
        self._last = begin
        self._recent: list[Record] = []
        self._total = self._failed = self._refused = 0

    def take(self, records: Sequence[Record]) -> None:
        self._recent += records
        self._total += len(records)
        self._failed += sum(record.outcome == "failed" for record in records)
        self._refused += sum(record.outcome == "refused" for record in records)

    def line(self, now: float, users: int) -> str:
        """What happened since the last line."""
        window = Window(self._last, max(now, self._last + 1e-3))
        recent, self._recent, self._last = self._recent, [], now
        failed = f"failed {self._failed}" if self._failed else "no failures"
        parts = [
            f"{_clock(now - self._begin)}/{_clock(self._duration_s)}",
            f"{users} users",
            f"{self._total} requests",
            f"{len(recent) / window.seconds:.1f}/s",
            f"{tokens_per_s(recent, window):.0f} tokens/s",
            f"TTFT {_times(summary(record.ttft for record in recent if record.ttft is not None))}",
            f"ITL {_times(summary(gap for record in recent for gap in record.gaps))}",
            failed,
            *([f"refused {self._refused}"] if self._refused else []),
        ]
        return "  ".join(parts)


def _times(found: Summary | None) -> str:
    return "-" if found is None else f"p50 {found.p50 * 1000:.0f} p99 {found.p99 * 1000:.0f} ms"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    return f"{minutes:02}:{rest:02}"
