"""Which model is in memory: a pure policy. `decide(event, state)` answers, `backends.pool` performs.

The tree, with the numbers that the code repeats. For `Want` (somebody needs a model that is not in memory):

    1  It is larger than the whole budget                          -> Reject
    2  It fits beside everything that occupies memory now          -> Load
    3  It fits once what is being unloaded has gone                -> Wait
    4  It fits if idle models go (and what is being unloaded)      -> Evict those used longest ago,
                                                                      none in vain
    5  It fits only after a busy or loading model became idle      -> Wait; the pool bounds that wait

For `Tick` (time passed): Evict every idle model whose time-to-live is over, counted from the end of its
last use.
For `Grown` (a model turned out larger than estimated): Evict idle models until the budget holds,
as far as it goes.

A busy model is never evicted, nor one that is loading or already being unloaded. Models that the catalogue
preloads are kept as long as evicting others suffices, whenever those were used, but they are evicted when
nothing else is idle: otherwise one preloaded model would lock every other one out of a small machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be in memory at once. None: no such limit."""

    budget_bytes: int | None = None
    max_loaded_models: int | None = None

    def __post_init__(self) -> None:
        if self.budget_bytes is not None and self.budget_bytes <= 0:
            raise ValueError(f"budget_bytes is {self.budget_bytes}; it must be at least 1")
        if self.max_loaded_models is not None and self.max_loaded_models <= 0:
            raise ValueError(f"max_loaded_models is {self.max_loaded_models}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class Resident:
    """One model that occupies memory, or soon will (`loading`), or still does (`unloading`)."""

    id: str
    size_bytes: int
    state: Literal["loading", "loaded", "unloading"] = "loaded"
    busy: int = 0
    """Requests that use it now."""
    last_used: float = 0.0
    """End of the last request (or of the load), in seconds of the pool's clock."""
    idle_ttl_s: float | None = None
    preload: bool = False

    @property
    def evictable(self) -> bool:
        return self.state == "loaded" and self.busy == 0


@dataclass(frozen=True, slots=True)
class State:
    residents: Sequence[Resident] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Want:
    """A model that is not among the residents is needed. `size_bytes` 0: unknown, taken to fit."""

    id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Grown:
    """The size of a resident became known and is larger than what was reserved. `id` itself stays."""

    id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """`now` in seconds of the pool's clock."""

    now: float


Event = Want | Grown | Tick


@dataclass(frozen=True, slots=True)
class Load:
    """There is room: reserve it and load."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Unload these, none of them busy. After `Want`, decide again when they are gone."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again when a resident changes."""


@dataclass(frozen=True, slots=True)
class Reject:
    """It can never fit."""


Decision = Load | Evict | Wait | Reject


def decide(event: Event, state: State) -> Decision:
    """The decision of the module's tree. For `Tick` and `Grown` it is always an `Evict`, possibly of
    nothing."""
    match event:
        case Want(size_bytes=size):
            return _place(size, state)
        case Grown(id=grown):
            others = [r for r in state.residents if r.id != grown]
            return Evict(_victims(others, state.residents, state.limits, size=0, count=0)[0])
        case Tick(now=now):
            return Evict(tuple(r.id for r in state.residents if r.evictable and _expires_at(r) <= now))


def next_expiry(residents: Iterable[Resident]) -> float | None:
    """When the first idle model reaches its time-to-live, in the clock's seconds; None if none ever does."""
    first = min((_expires_at(r) for r in residents if r.evictable), default=_NEVER)
    return None if first == _NEVER else first


_NEVER = float("inf")


def _expires_at(resident: Resident) -> float:
    return _NEVER if resident.idle_ttl_s is None else resident.last_used + resident.idle_ttl_s


def _place(size: int, state: State) -> Decision:
    residents, limits = state.residents, state.limits
    if limits.budget_bytes is not None and size > limits.budget_bytes:
        return Reject()  # 1
    if _fits(residents, limits, size, 1):
        return Load()  # 2
    staying = [r for r in residents if r.state != "unloading"]
    if _fits(staying, limits, size, 1):
        return Wait()  # 3
    victims, enough = _victims(staying, staying, limits, size=size, count=1)
    return Evict(victims) if enough else Wait()  # 4, 5


def _fits(residents: Iterable[Resident], limits: Limits, size: int, count: int) -> bool:
    for resident in residents:
        size += resident.size_bytes
        count += 1
    return (limits.budget_bytes is None or size <= limits.budget_bytes) and (
        limits.max_loaded_models is None or count <= limits.max_loaded_models
    )


def _victims(
    candidates: Iterable[Resident], residents: Sequence[Resident], limits: Limits, *, size: int, count: int
) -> tuple[tuple[str, ...], bool]:
    """The idle candidates to evict so that `count` more models of `size` bytes fit, and whether that
    suffices."""
    remaining = list(residents)
    chosen: list[Resident] = []
    for resident in sorted(
        (r for r in candidates if r.evictable), key=lambda r: (r.preload, r.last_used, r.id)
    ):
        if _fits(remaining, limits, size, count):
            break
        remaining.remove(resident)
        chosen.append(resident)
    enough = _fits(remaining, limits, size, count)
    # A large model chosen late can make the small ones chosen before it superfluous: put back what fits,
    # newest first.
    for resident in reversed(chosen[:-1] if enough else []):
        if _fits([*remaining, resident], limits, size, count):
            remaining.append(resident)
            chosen.remove(resident)
    return tuple(r.id for r in chosen), enough
