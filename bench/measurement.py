"""What every measurement is made of, and what it is given."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.result import verdict
from bench.stats import Spread, ratio, spread

PORTION_OF_ERRORS = 20
"""How many error messages a result keeps in words."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The same for all measurements of one run."""

    out: Path
    priority: int | None
    llama_server: Path | None
    seed: int

    def say(self, line: str) -> None:
        """Progress goes to stderr; stdout carries the tables."""
        print(line, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Findings:
    """What a measurement adds to the conditions that every result states."""

    parameters: dict[str, Any]
    n: str
    data: dict[str, Any]
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    client: str = "aiohttp, one connection per request"


class PeerMissing(SystemExit):
    """What a measurement compares with is not installed. The message says how to get it; by itself it ends the command
    with that message, among others the measurement is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One row of the table of all comparisons: a route of ours, a peer, and what was measured of both."""

    route: str
    peer: str
    what: str
    ours: Spread | None
    theirs: Spread | None
    ratio: Spread | None
    """Ours over theirs, as `stats.ratio` gives it."""
    is_more_better: bool
    digits: int = 1
    goal: str = ""
    """As `result.verdict` words it."""

    @classmethod
    def of(
        cls,
        ours: Sequence[float | None],
        theirs: Sequence[float | None],
        *,
        goal: Mapping[str, float] | None = None,
        **words: Any,
    ) -> Ratio:
        """Of both sides' values, one per turn and in the same order. `goal` is one of the ratio, as `verdict` takes it;
        `words` are the other fields."""
        both = ratio(ours, theirs)
        told = verdict(both.median if both else None, **goal) if goal else ""
        return cls(ours=spread(ours), theirs=spread(theirs), ratio=both, goal=told, **words)

    @property
    def loss(self) -> float | None:
        """How many times worse ours is; below 1 it is better. None: not measured."""
        if self.ratio is None or not self.ratio.median:
            return None
        return 1 / self.ratio.median if self.is_more_better else self.ratio.median

    @property
    def better(self) -> str:
        """Whose side every single pair is on, or that they are not on one side."""
        if self.ratio is None:
            return "–"
        if self.ratio.lowest <= 1 <= self.ratio.highest:
            return "neither"
        return "ours" if (self.ratio.median > 1) == self.is_more_better else self.peer


@dataclass(frozen=True, slots=True)
class Measurement:
    """One subcommand. `table` and `ratios` need the findings' `data` alone, so that a report can be made later."""

    name: str
    title: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace, Setup], Awaitable[Findings]]
    table: Callable[[Mapping[str, Any]], str]
    quick: Sequence[str]
    """Arguments that make it a smoke test of seconds."""
    ratios: Callable[[Mapping[str, Any]], Sequence[Ratio]] | None = None
    """Of a measurement that compares with a peer."""
    seconds: Callable[[argparse.Namespace], float] | None = None
    """About how long it takes, with what starting and settling takes on 2 cores."""


def whole_numbers(text: str) -> list[int]:
    """`1,8,16` as a list, for argparse."""
    numbers = [int(part) for part in text.split(",")]
    if not all(number > 0 for number in numbers):
        raise ValueError(text)
    return numbers


def many(number: int, word: str) -> str:
    """`1 stream`, `8 streams`."""
    return f"{number} {word}" + ("" if number == 1 else "s")
