"""Distributions of lengths and pauses, as workload files write them:

100                                                        always the same
{uniform: [32, 128]}                                       evenly between two bounds, both included
{lognormal: {median: 100, sigma: 0.6, min: 8, max: 1000}}  skewed to the right, as prompts are; cut at min and max
{exponential: {mean: 2, max: 20}}                          pauses of people
{mix: [{weight: 9, of: 60}, {weight: 1, of: 4000}]}        one of several, by weight
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from loadtests.section import Section

KINDS = ("uniform", "lognormal", "exponential", "mix")


@dataclass(frozen=True, slots=True)
class Lengths:
    """`draw` gives one value; the same `Random` gives the same row of them. `text` is how a report names it."""

    draw: Callable[[Random], float]
    text: str
    highest: float

    def draw_int(self, random: Random) -> int:
        return round(self.draw(random))


def constant(value: float) -> Lengths:
    return Lengths(lambda _: value, f"{value:g}", value)


def read_lengths(section: Section, name: str, default: float | None = None, *, least: float = 0) -> Lengths:
    """The distribution under a key; every value it can give is `least` or more. Raises: WorkloadError."""
    raw = section.raw(name)
    if not isinstance(raw, dict):
        return constant(section.number(name, default, least=least))
    inner = section.section(name)
    kinds = [kind for kind in KINDS if inner.has(kind)]
    if len(kinds) != 1:
        raise section.error(name, f"one of {', '.join(KINDS)}, or a number; it has {sorted(map(str, raw))}")
    found = _READERS[kinds[0]](inner, least)
    inner.end()
    return found


def _uniform(section: Section, least: float) -> Lengths:
    bounds = section.items("uniform")
    if len(bounds) != 2 or not all(type(bound) in (int, float) for bound in bounds):
        raise section.error("uniform", f"{bounds!r} is not [lowest, highest]")
    low, high = bounds
    if not least <= low <= high < math.inf:
        raise section.error("uniform", f"{bounds!r}: {least:g} <= lowest <= highest does not hold")
    if type(low) is int and type(high) is int:
        return Lengths(lambda random: random.randint(low, high), f"uniform {low}-{high}", high)
    return Lengths(lambda random: random.uniform(low, high), f"uniform {low:g}-{high:g}", high)


def _lognormal(section: Section, least: float) -> Lengths:
    inner = section.section("lognormal")
    median, sigma = inner.number("median", above=0), inner.number("sigma", above=0)
    low, high = inner.number("min", least, least=least), inner.number("max", least=least)
    inner.end()
    if not low <= median <= high:
        raise section.error("lognormal", f"min <= median <= max does not hold: {low:g}, {median:g}, {high:g}")
    mu = math.log(median)
    return Lengths(
        lambda random: min(high, max(low, random.lognormvariate(mu, sigma))),
        f"lognormal, median {median:g}, sigma {sigma:g}, {low:g}-{high:g}",
        high,
    )


def _exponential(section: Section, least: float) -> Lengths:
    inner = section.section("exponential")
    mean, high = inner.number("mean", above=0), inner.number("max", above=0)
    inner.end()
    if high < least:
        raise section.error("exponential", f"max is {high:g}, below {least:g}")
    return Lengths(
        lambda random: min(high, max(least, random.expovariate(1 / mean))),
        f"exponential, mean {mean:g}, at most {high:g}",
        high,
    )


def _mix(section: Section, least: float) -> Lengths:
    weights: list[float] = []
    parts: list[Lengths] = []
    for number, raw in enumerate(section.items("mix")):
        entry = Section(raw, f"{section.place}.mix[{number}]")
        weights.append(entry.number("weight", above=0))
        parts.append(read_lengths(entry, "of", least=least))
        entry.end()
    total = sum(weights)
    text = "; ".join(
        f"{weight / total:.0%}: {part.text}" for weight, part in zip(weights, parts, strict=True)
    )
    return Lengths(
        lambda random: random.choices(parts, weights)[0].draw(random),
        text,
        max(part.highest for part in parts),
    )


_READERS: dict[str, Callable[[Section, float], Lengths]] = {
    "uniform": _uniform,
    "lognormal": _lognormal,
    "exponential": _exponential,
    "mix": _mix,
}
