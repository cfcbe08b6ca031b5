"""The line that says, every few seconds, how a run goes."""

from __future__ import annotations

from collections.abc import Sequence

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
        self._total = self._failed = self._refused = self._pieces = 0

    def take(self, records: Sequence[Record]) -> None:
        self._recent += records
        self._total += len(records)
        self._failed += sum(record.outcome == "failed" for record in records)
        self._refused += sum(record.outcome == "refused" for record in records)

    def line(self, now: float, users: int, pieces: int) -> str:
        """What happened since the last line: requests that ended in it, and pieces of all streams since the begin."""
        seconds = max(1e-3, now - self._last)
        recent, self._recent, self._last = self._recent, [], now
        came, self._pieces = pieces - self._pieces, pieces
        failed = f"failed {self._failed}" if self._failed else "no failures"
        parts = [
            f"{_clock(now - self._begin)}/{_clock(self._duration_s)}",
            f"{users} users",
            f"{self._total} requests",
            f"{len(recent) / seconds:.1f}/s",
            f"{came / seconds:.0f} pieces/s",
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
