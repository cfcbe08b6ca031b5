"""The mathematics of the tables. Seconds in, seconds out; None where there was nothing to measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.stats import percentile

__all__ = ["Spread", "median", "percentile", "ratio", "spread"]


def median(values: Iterable[float]) -> float | None:
    return percentile(values, 0.5)


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    lowest: float
    highest: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, lowest and highest of what was measured; None where nothing was."""
    known = [value for value in values if value is not None]
    middle = median(known)
    return None if middle is None else Spread(middle, min(known), max(known))


def ratio(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Spread | None:
    """Ours over theirs: the ratio of the medians, and the lowest and highest ratio of two neighbours.

    Both sequences hold one value per alternation, in the same order: only neighbours in time saw the same machine,
    so the spread is that of the pairs.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b]
    mine, other = median(a for a, _ in pairs), median(b for _, b in pairs)
    if mine is None or not other:
        return None
    each = [a / b for a, b in pairs]
    return Spread(mine / other, min(each), max(each))
