"""The levels of a ramp, with time told by the test."""

from __future__ import annotations

import pytest

from loadtests.arrival import Arrival
from loadtests.ramp import RampProgress
from loadtests.run_folder import Level

ARRIVAL = Arrival(kind="ramp", levels=(1, 2, 4), step_s=30, settle_s=8, least_gain=0.05)


def test_a_level_is_measured_after_it_has_settled() -> None:
    ramp = RampProgress(ARRIVAL)

    loads = [ramp.load(at, pieces) for at, pieces in [(100, 0), (107, 50), (108, 60), (129, 190), (130, 280)]]

    assert loads == [1, 1, 1, 1, 2]
    assert ramp.levels == [Level(1, 108, 130)]
    assert ramp.rates == [10.0]


def test_a_level_that_nobody_looked_at_for_long_is_still_measured_over_its_time() -> None:
    ramp = RampProgress(ARRIVAL)

    loads = [ramp.load(at, pieces) for at, pieces in [(100, 0), (214, 2), (235, 100), (236, 112)]]

    assert loads == [1, 1, 1, 2]
    assert ramp.levels == [Level(1, 214, 236)]
    assert ramp.rates == [5.0]


def test_the_ramp_ends_after_its_last_level() -> None:
    ramp = RampProgress(ARRIVAL)
    looks = [(0, 0), (8, 0), (30, 100), (38, 100), (60, 300), (68, 300), (90, 900)]

    loads = [ramp.load(at, pieces) for at, pieces in looks]

    assert loads == [1, 1, 2, 2, 4, 4, None]
    assert [level.load for level in ramp.levels] == [1, 2, 4]
    assert not ramp.is_saturated


@pytest.mark.parametrize("pieces", [200, 150])
def test_the_ramp_ends_when_more_load_brings_no_more(pieces: int) -> None:
    ramp = RampProgress(ARRIVAL)
    looks = [(0, 0), (8, 0), (30, 100), (38, 100), (60, pieces)]

    assert [ramp.load(at, count) for at, count in looks][-1] is None
    assert ramp.is_saturated
