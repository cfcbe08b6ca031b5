"""The mathematics of the reports. None stands where there was nothing to measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""The percentiles that a summary has, by the names that reports and expectations use."""


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of the values lie, interpolated linearly between the two nearest ranks
    (the first has rank 0, the last n - 1), as numpy does by default. None for no values.

    Raises: ValueError for a share outside 0 to 1.
    """
    return _percentile_of_sorted(sorted(values), share)


def _percentile_of_sorted(ordered: Sequence[float], share: float) -> float | None:
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; allowed: 0 to 1")
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    if below == len(ordered) - 1:
        return ordered[below]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (position - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """Many measurements of one thing. `n` is never left out of a table: a p99 of 20 values is their largest."""

    n: int
    mean: float
    lowest: float
    p50: float
    p90: float
    p95: float
    p99: float
    highest: float


def summary(values: Iterable[float]) -> Summary | None:
    """None for no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p95, p99 = (_percentile_of_sorted(ordered, share) or 0.0 for share in SHARES.values())
    return Summary(
        n=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        lowest=ordered[0],
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        highest=ordered[-1],
    )


def time_per_output_token(first: float, last: float, tokens: int) -> float | None:
    """TPOT as vLLM defines it: (last - first) / (n - 1). None for fewer than two tokens."""
    return (last - first) / (tokens - 1) if tokens > 1 else None


def cumulative(values: Iterable[float], max_points: int = 200) -> list[tuple[float, float]]:
    """The empirical distribution as (value, share of the values that are not above it), thinned to `max_points`
    evenly spaced ranks. First and last value are always in it."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return []
    count = min(n, max(2, max_points))
    ranks = sorted({round(i * (n - 1) / max(1, count - 1)) for i in range(count)})
    return [(ordered[rank], (rank + 1) / n) for rank in ranks]


def binned(
    items: Iterable[T], at: Callable[[T], float], *, begin: float, end: float, width: float
) -> list[list[T]]:
    """Items by the bin that their time falls into: [begin, begin + width), … up to `end`.

    What lies outside is left out. The last bin may be narrower than the others.

    Raises: ValueError for a width that is not above 0.
    """
    if width <= 0:
        raise ValueError(f"width is {width}; it must be above 0")
    bins: list[list[T]] = [[] for _ in range(max(0, math.ceil((end - begin) / width - 1e-9)))]
    for item in items:
        time = at(item)
        if begin <= time < end:
            bins[min(int((time - begin) / width), len(bins) - 1)].append(item)
    return bins


def ratio(above: float | None, below: float | None) -> float | None:
    """None where one of the two is missing or there is nothing to divide by."""
    return None if above is None or not below else above / below
