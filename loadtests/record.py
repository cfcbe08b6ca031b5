"""What is kept of each request, one JSON line each: the reports are made of nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

Outcome = Literal["ok", "refused", "failed", "abandoned"]
"""`refused`: 429, or 503 for want of a place. `abandoned`: the caller left on purpose."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One request. Times in seconds; None is what was not seen."""

    user: str
    """The kind of user that sent it."""
    start: float
    """Unix time when it was sent."""
    outcome: Outcome = "ok"
    status: int | None = None
    error: str | None = None
    """The kind of failure or refusal, one of few words."""
    detail: str | None = None
    """What exactly, for the first of each kind that a report shows."""
    ttft: float | None = None
    """Sent to the first piece of what the model says; streams only."""
    gaps: list[float] = field(default_factory=list)
    """Between two pieces of one stream."""
    e2e: float | None = None
    """Sent to the last byte. None for whoever left."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    max_tokens: int | None = None
    late: float = 0.0
    """How much later than planned an open loop sent it."""
    retry_after: float | None = None
    """What a refusal asked to wait."""
    turn: int = 1
    """Which question of its conversation it was."""

    @property
    def pieces(self) -> int:
        return 0 if self.ttft is None else len(self.gaps) + 1

    @property
    def tpot(self) -> float | None:
        """(last - first) / (n - 1), n as the server counts tokens; of whole streams."""
        if self.outcome != "ok" or self.ttft is None or (self.completion_tokens or 0) < 2:
            return None
        return sum(self.gaps) / ((self.completion_tokens or 0) - 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of the answer by e2e."""
        if self.outcome != "ok" or not self.e2e or not self.completion_tokens:
            return None
        return self.completion_tokens / self.e2e

    def piece_times(self) -> Iterator[float]:
        """Unix times of the pieces."""
        if self.ttft is not None:
            at = self.start + self.ttft
            yield at
            for gap in self.gaps:
                at += gap
                yield at


_FIELDS = {item.name: item for item in fields(Record)}
_SECONDS = ("ttft", "e2e", "late", "retry_after")


def to_line(record: Record) -> str:
    """What is at its default is left out; gaps are whole microseconds."""
    line: dict[str, Any] = {"user": record.user, "start": round(record.start, 6)}
    for name, item in _FIELDS.items():
        value = getattr(record, name)
        if name in line or value in (item.default, []):
            continue
        if name == "gaps":
            value = [round(gap * 1e6) for gap in value]
        elif name in _SECONDS:
            value = round(value, 6)
        line[name] = value
    return json.dumps(line, separators=(",", ":"))


def from_line(line: str) -> Record:
    """Raises: ValueError for a line that is no record."""
    try:
        raw = json.loads(line)
        if raw.get("outcome", "ok") not in get_args(Outcome):
            raise ValueError(f"outcome is {raw['outcome']!r}")
        if "gaps" in raw:
            raw["gaps"] = [gap / 1e6 for gap in raw["gaps"]]
        return Record(**raw)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a record: {error}") from error


def read_records(path: Path) -> list[Record]:
    """By start. A last line that was cut by an end by force is left out.

    Raises: ValueError naming the line.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(from_line(line))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
    return sorted(found, key=lambda record: record.start)


def to_lines(records: Iterable[Record]) -> str:
    return "".join(to_line(record) + "\n" for record in records)
