"""Measurements that measure nothing: what the command, the table of comparisons and the page are tested with."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.measurement import Findings, Measurement, Ratio, Setup
from bench.stats import Spread


def a_ratio(low: float = 1.0, middle: float = 1.1, high: float = 1.2, **changes: Any) -> Ratio:
    plain: dict[str, Any] = {
        "route": "vLLM",
        "peer": "theirs",
        "what": "tokens/s",
        "ours": Spread(11, 10, 12),
        "theirs": Spread(10, 10, 10),
        "ratio": Spread(middle, low, high),
        "is_more_better": True,
    }
    return Ratio(**(plain | changes))


@dataclass
class Scripted:
    """A comparison that finds `rows`, or raises. `asked` holds the options of every run."""

    name: str = "a"
    rows: list[Ratio] = field(default_factory=lambda: [a_ratio()])
    fails: BaseException | None = None
    errors: list[str] = field(default_factory=list)
    asked: list[argparse.Namespace] = field(default_factory=list)

    def measurement(self) -> Measurement:
        return Measurement(
            name=self.name,
            title="nothing",
            add_arguments=_with_rounds,
            measure=self._measure,
            table=lambda data: f"table of {data['name']}",
            ratios=self._ratios,
            seconds=lambda options: 60.0 * options.rounds,
            quick=["--rounds", "1"],
        )

    async def _measure(self, options: argparse.Namespace, _: Setup) -> Findings:
        self.asked.append(options)
        if self.fails is not None:
            raise self.fails
        return Findings(parameters={}, n="3 rounds", data={"name": self.name}, errors=self.errors)

    def _ratios(self, _: Mapping[str, Any]) -> list[Ratio]:
        return self.rows


def _with_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
