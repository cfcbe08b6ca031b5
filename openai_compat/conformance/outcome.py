"""What became of each behaviour, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from openai_compat.conformance.check import Level

Result = Literal["passed", "failed", "not offered", "not tried"]

RESULTS: Final[tuple[Result, ...]] = ("passed", "failed", "not offered", "not tried")
SEEN_CHARS: Final = 240
"""Of what a check saw; an answer's whole body is of no use in a table."""


@dataclass(slots=True)
class Outcome:
    """One behaviour, which several checks may try."""

    id: str
    group: str
    level: Level
    """`openai`: what any server of OpenAI's API should do; `extension`: what only this service promises."""
    says: str
    num_passed: int = 0
    failures: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """How the server said that it does not do this; on a server that promised nothing, how it showed."""
    reasons: list[str] = field(default_factory=list)
    """Why checks could not be tried."""

    @property
    def result(self) -> Result:
        if self.failures:
            return "failed"
        if self.refusals:
            return "not offered"
        return "passed" if self.num_passed else "not tried"

    @property
    def seen(self) -> str:
        """One line: what was wrong, refused or missing; "" for a pass."""
        told = self.failures or self.refusals
        if told:
            checks = len(self.failures) + len(self.refusals) + self.num_passed
            of_all = f"{len(told)} of {checks} checks: " if checks > 1 else ""
            return (of_all + told[0])[:SEEN_CHARS]
        return "" if self.num_passed else (self.reasons[0] if self.reasons else "")[:SEEN_CHARS]

    def document(self) -> dict[str, object]:
        return {
            "id": self.id,
            "group": self.group,
            "level": self.level,
            "says": self.says,
            "result": self.result,
            "seen": self.seen,
        }


def text_table(behaviours: Sequence[Mapping[str, Any]]) -> str:
    """Of `Outcome.document`s, for a terminal: a line each, groups together, what was seen beside each failure."""
    width = max((len(one["id"]) for one in behaviours), default=0)
    lines: list[str] = []
    for group in dict.fromkeys(one["group"] for one in behaviours):
        lines += ["", group]
        for one in behaviours:
            if one["group"] == group:
                mark = "*" if one["level"] == "extension" else " "
                lines.append(f"  {one['id']:<{width}} {mark} {one['result']:<11} {one['seen']}".rstrip())
    results = [one["result"] for one in behaviours]
    total = ", ".join(f"{results.count(result)} {result}" for result in RESULTS)
    return "\n".join([*lines[1:], "", total, "* only this service promises it"])
