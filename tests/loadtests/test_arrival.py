"""When requests are sent."""

from __future__ import annotations

from itertools import accumulate, islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.arrival import is_saturated, next_burst, poisson_waits, read_arrival, users_at_level
from loadtests.section import Section


def test_poisson_waits_have_the_rate_and_the_spread_of_one() -> None:
    waits = list(islice(poisson_waits(4.0, Random(1)), 8000))

    mean = sum(waits) / len(waits)
    deviation = (sum((wait - mean) ** 2 for wait in waits) / len(waits)) ** 0.5
    assert mean == pytest.approx(0.25, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_sources_together_have_the_whole_rate() -> None:
    arrival = read_arrival(Section({"kind": "poisson", "rate": 8, "sources": 4}))
    sources = [islice(poisson_waits(arrival.rate_per_source, Random(i)), 4000) for i in range(arrival.users)]

    in_400_s = sum(at < 400 for waits in sources for at in accumulate(waits))

    assert in_400_s == pytest.approx(3200, rel=0.06)


@given(st.integers(0, 8_000_000_000), st.integers(1, 4000))
def test_burst_comes_next_at_a_multiple_of_its_period(quarters: int, every_quarters: int) -> None:
    now, every_s = quarters / 4, every_quarters / 4

    at = next_burst(now, every_s)

    assert now < at <= now + every_s
    assert at % every_s == 0


def test_open_ramp_adds_sources_as_fast_as_the_first() -> None:
    ramp = read_arrival(Section({"kind": "ramp", "of": "rate", "levels": [0.5, 1, 2], "step_s": 5}))

    assert [users_at_level(ramp, level) for level in ramp.levels] == [1, 2, 4]
    assert ramp.rate_per_source == 0.5


def test_closed_ramp_has_its_users() -> None:
    ramp = read_arrival(Section({"kind": "ramp", "of": "users", "levels": [1, 3], "step_s": 5}))

    assert [users_at_level(ramp, level) for level in ramp.levels] == [1, 3]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], False),
        ([100.0], False),
        ([100.0, 190.0], False),
        ([100.0, 190.0, 195.0], True),  # 2.6 % more
        ([100.0, 190.0, 150.0], True),
        ([100.0, 190.0, 200.0], False),
        ([200.0, 100.0, 205.0], True),  # against the best, not the last
    ],
)
def test_ramp_is_saturated_when_more_load_brings_no_more(rates: list[float], expected: bool) -> None:
    assert is_saturated(rates, least_gain=0.05) is expected
