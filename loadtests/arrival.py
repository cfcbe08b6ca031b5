"""When requests are sent.

closed    `users` callers, each sends its next request when the last one has ended (and after its pause)
poisson   requests come at `rate` a second on average, whether or not the earlier ones have ended
burst     `size` requests at once, `every_s` seconds
ramp      one of the first two in `levels` of `step_s` seconds each, until more load brings no more tokens

An open loop is made of sources: every locust user of it is one, with an equal share of the rate. Sources are
independent, so that together they are a Poisson process again, on however many workers they run; bursts keep to the
wall clock for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from loadtests.section import Section

KINDS = ("closed", "poisson", "burst", "ramp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A rate that is measured first: `times` what `probe_users` callers in a closed loop got done in `probe_s`."""

    times: float
    probe_users: int
    probe_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """`users` are the locust users of a run without levels: callers, or sources of an open loop."""

    kind: Literal["closed", "poisson", "burst", "ramp"]
    users: int = 1
    rate: float | None = None
    """Requests per second of all sources; None until a capacity has been measured, and elsewhere."""
    capacity: Capacity | None = None
    size: int = 0
    every_s: float = 0.0
    levels: tuple[float, ...] = ()
    """Users, or requests per second where `is_open`."""
    step_s: float = 0.0
    settle_s: float = 0.0
    """The beginning of each level that counts for nothing."""
    least_gain: float = 0.0
    """A level that brings less than this share more pieces than the best one is the last one."""
    is_open: bool = False

    @property
    def rate_per_source(self) -> float:
        """Requests per second of one locust user of an open loop. A ramp adds sources, each as fast as its first level.

        Raises: ValueError while the rate is not known, and in a closed loop or a burst.
        """
        if self.kind == "ramp" and self.is_open:
            return self.levels[0]
        if self.rate is None:
            raise ValueError("no rate is known: the capacity was not measured")
        return self.rate / self.users

    @property
    def text(self) -> str:
        """In a report's words."""
        if self.kind == "closed":
            return f"closed loop of {self.users} users"
        if self.kind == "burst":
            return f"bursts of {self.size} requests every {self.every_s:g} s"
        if self.kind == "ramp":
            unit = "requests/s, open loop" if self.is_open else "users, closed loop"
            levels = ", ".join(f"{level:g}" for level in self.levels)
            return f"ramp of {levels} {unit}, {self.step_s:g} s each"
        if self.capacity is not None:
            told = "" if self.rate is None else f" = {self.rate:.3g} requests/s"
            return f"open loop (Poisson), {self.capacity.times:g} times the measured capacity{told}"
        return f"open loop (Poisson), {self.rate:g} requests/s"


def read_arrival(section: Section) -> Arrival:
    """Raises: WorkloadError."""
    kind = section.one_of("kind", KINDS)
    if kind == "closed":
        arrival = Arrival(kind="closed", users=section.integer("users"))
    elif kind == "poisson":
        arrival = _read_poisson(section)
    elif kind == "burst":
        size = section.integer("size")
        arrival = Arrival(
            kind="burst",
            users=1,
            size=size,
            every_s=section.number("every_s", above=0),
            is_open=True,
        )
    else:
        arrival = _read_ramp(section)
    section.end()
    return arrival


def _read_poisson(section: Section) -> Arrival:
    sources = section.integer("sources", 4)
    if not section.has("times_capacity"):
        rate = section.number("rate", above=0)
        return Arrival(kind="poisson", rate=rate, users=sources, is_open=True)
    if section.has("rate"):
        raise section.error("rate", "either this or times_capacity")
    capacity = Capacity(
        times=section.number("times_capacity", above=0),
        probe_users=section.integer("probe_users"),
        probe_s=section.number("probe_s", above=0),
    )
    return Arrival(kind="poisson", capacity=capacity, users=sources, is_open=True)


def _read_ramp(section: Section) -> Arrival:
    of = section.one_of("of", ("users", "rate"))
    levels = section.items("levels")
    for number, level in enumerate(levels):
        is_number = type(level) is int or (of == "rate" and type(level) is float and math.isfinite(level))
        if not is_number or level <= 0 or (number and level <= levels[number - 1]):
            whole = " whole" if of == "users" else ""
            raise section.error("levels", f"{levels!r} are not{whole} numbers above 0 that rise")
        if of == "rate" and abs(level / levels[0] - round(level / levels[0])) > 1e-6:
            raise section.error("levels", f"{level:g} is no multiple of the first, {levels[0]:g}")
    step_s = section.number("step_s", above=0)
    settle_s = section.number("settle_s", step_s / 4, least=0)
    if settle_s >= step_s:
        raise section.error("settle_s", f"{settle_s:g} leaves nothing of a step of {step_s:g} s")
    return Arrival(
        kind="ramp",
        levels=tuple(float(level) for level in levels),
        step_s=step_s,
        settle_s=settle_s,
        least_gain=section.number("least_gain", 0.05, least=0),
        is_open=of == "rate",
        users=1,
    )


def users_at_level(arrival: Arrival, level: float) -> int:
    """Locust users of a level: callers, or sources."""
    return round(level / arrival.levels[0]) if arrival.is_open else int(level)


def poisson_waits(rate: float, random: Random) -> Iterator[float]:
    """Seconds from one arrival to the next, without end."""
    while True:
        yield random.expovariate(rate)


def next_burst(now: float, every_s: float) -> float:
    """The next time after `now` that is a multiple of `every_s`: the same on every machine whose clock is right."""
    return (math.floor(now / every_s) + 1) * every_s


def is_saturated(rates: list[float], least_gain: float) -> bool:
    """Whether the last rate is less than `least_gain` above the best one before it."""
    if len(rates) < 2:
        return False
    return rates[-1] < max(rates[:-1]) * (1 + least_gain)
