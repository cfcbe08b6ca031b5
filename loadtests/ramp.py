"""Where a ramp stands: which load is offered, what each level brought, and when it is over."""

from __future__ import annotations

from loadtests.arrival import Arrival, is_saturated
from loadtests.run_folder import Level


class RampProgress:
    """Asked again and again, with the time and the pieces counted so far. What comes late makes a level longer: it is
    measured over `step_s - settle_s` seconds at least."""

    def __init__(self, arrival: Arrival) -> None:
        self.levels: list[Level] = []
        self.rates: list[float] = []
        """Pieces per second of the levels that are over."""
        self.is_saturated = False
        self._arrival = arrival
        self._number = -1
        self._entered = 0.0
        self._settled: tuple[float, int] | None = None

    def load(self, now: float, pieces: int) -> float | None:
        """What to offer from now on; None when the ramp is over."""
        arrival = self._arrival
        if self._number < 0:
            return self._enter(now)
        if self._settled is None:
            if now - self._entered >= arrival.settle_s:
                self._settled = now, pieces
            return arrival.levels[self._number]
        begin, counted = self._settled
        if now - begin < arrival.step_s - arrival.settle_s:
            return arrival.levels[self._number]
        self.levels.append(Level(arrival.levels[self._number], begin, now))
        self.rates.append((pieces - counted) / (now - begin))
        self.is_saturated = is_saturated(self.rates, arrival.least_gain)
        return None if self.is_saturated else self._enter(now)

    def _enter(self, now: float) -> float | None:
        self._number += 1
        self._entered, self._settled = now, None
        return self._arrival.levels[self._number] if self._number < len(self._arrival.levels) else None
