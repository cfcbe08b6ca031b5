"""What must hold after a run: a bound on one measure, or on one measure over another.

    - {measure: failed, max: 0}
    - {measure: chat_stream.ttft.p50, over: chat_stream.e2e.p50, max: 0.5, why: text comes early}

Bounds on ratios hold on any machine; bounds on times hold on the one they were written for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtests.section import Section
from loadtests.stats import SHARES

TIMES = ("ttft", "itl", "tpot", "e2e", "tokens_per_s", "late")
"""Distributions; a measure names one value of them: `e2e.p99`, `itl.mean`."""
OF_TIMES = ("n", "mean", "lowest", *SHARES, "highest")
COUNTS = (
    "requests",
    "ok",
    "refused",
    "failed",
    "abandoned",
    "good",
    "pieces",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "max_tokens",
    "gaps",
    "gaps_at_once",
    "later_turns.prompt_tokens",
    "later_turns.cached_tokens",
)
"""Sums. `gaps_at_once`: pieces that arrived together with the one before; `later_turns`: all but the first of each
conversation."""
RATES = ("ok_per_s", "good_per_s")
"""Per second of what counts."""
OF_THE_RUN = (
    "capacity_per_s",
    "running_after",
    "first_half.pieces",
    "second_half.pieces",
    "client.lag.p99",
)
"""`running_after`: requests that the service still counts as running when the load has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """`least` and `most` are inclusive. An optional one holds where its measure does not exist."""

    measure: str
    over: str | None = None
    least: float | None = None
    most: float | None = None
    why: str = ""
    is_optional: bool = False

    @property
    def text(self) -> str:
        left = self.measure if self.over is None else f"{self.measure} ÷ {self.over}"
        bounds = [f"≥ {self.least:g}"] if self.least is not None else []
        bounds += [f"≤ {self.most:g}"] if self.most is not None else []
        return f"{left} {' and '.join(bounds)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An expectation and what was measured; None: nothing was."""

    expectation: Expectation
    value: float | None

    @property
    def holds(self) -> bool:
        expected, value = self.expectation, self.value
        if value is None:
            return expected.is_optional
        return (expected.least is None or value >= expected.least) and (
            expected.most is None or value <= expected.most
        )


def judge(expectations: Sequence[Expectation], measures: Mapping[str, float]) -> list[Verdict]:
    """One verdict each. A ratio whose divisor is missing or 0 was not measured."""
    verdicts = []
    for expected in expectations:
        value = measures.get(expected.measure)
        if expected.over is not None and value is not None:
            below = measures.get(expected.over)
            value = value / below if below else None
        verdicts.append(Verdict(expected, value))
    return verdicts


def is_measure(name: str, users: Sequence[str]) -> bool:
    """Whether a report can have a measure of this name: one of the run, or `[user.]count`, `[user.]time.value`."""
    if name in OF_THE_RUN:
        return True
    user, _, rest = name.partition(".")
    if user not in users:
        rest = name
    time, _, value = rest.partition(".")
    return rest in COUNTS or rest in RATES or (time in TIMES and value in OF_TIMES)


def read_expectations(section: Section, users: Sequence[str]) -> tuple[Expectation, ...]:
    """Under the key `expect`. Raises: WorkloadError."""
    if not section.has("expect"):
        section.raw("expect")
        return ()
    found = []
    for number, raw in enumerate(section.items("expect")):
        entry = Section(raw, f"expect[{number}]")
        names = {"measure": entry.text("measure")}
        if entry.has("over"):
            names["over"] = entry.text("over")
        for key, name in names.items():
            if not is_measure(name, users):
                times, counts = "|".join(TIMES), "|".join(COUNTS + RATES)
                forms = f"[USER.]({times}).({'|'.join(OF_TIMES)}), [USER.]({counts}), {', '.join(OF_THE_RUN)}"
                raise entry.error(key, f"there is no measure {name!r}; known: {forms}")
        expectation = Expectation(
            **names,
            least=entry.number("min") if entry.has("min") else None,
            most=entry.number("max") if entry.has("max") else None,
            why=entry.text("why", ""),
            is_optional=entry.flag("optional", default=False),
        )
        for key in ("over", "min", "max"):
            entry.raw(key)
        if expectation.least is None and expectation.most is None:
            raise entry.error("min", "it is missing, and so is max")
        entry.end()
        found.append(expectation)
    return tuple(found)
