"""Percentiles and spreads, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import Spread, median, percentile, ratio, spread


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.5),  # unsorted; between ranks 1 and 2
        ([10.0, 20.0, 30.0, 40.0, 50.0], 0.25, 20.0),  # position 1 exactly
        ([10.0, 20.0, 30.0, 40.0, 50.0], 0.9, 46.0),  # position 3.6: 40 + 0.6 * 10
        ([0.0, 100.0], 0.99, 99.0),
        ([5.0, 6.0, 7.0], 0.0, 5.0),
        ([5.0, 6.0, 7.0], 1.0, 7.0),
    ],
)
def test_percentile_interpolates_between_the_nearest_ranks(
    values: list[float], share: float, expected: float
) -> None:
    found = percentile(values, share)

    assert found is not None
    assert math.isclose(found, expected)


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("share", [-0.01, 1.01, 99])
def test_percentile_refuses_a_share_outside_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_percentile_never_falls_as_the_share_grows(values: list[float], one: float, other: float) -> None:
    low, high = percentile(values, min(one, other)), percentile(values, max(one, other))

    assert low is not None
    assert high is not None
    assert min(values) <= low <= high + 1e-6
    assert high <= max(values)


def test_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle() -> None:
    assert median([1.0, 9.0, 3.0, 5.0]) == 4.0


def test_spread_leaves_out_what_was_not_measured() -> None:
    assert spread([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_spread_of_nothing_measured_is_none() -> None:
    assert spread([None, None]) is None


def test_ratio_is_that_of_the_medians_and_its_spread_that_of_the_pairs() -> None:
    # Medians 10 and 20; pairs 8/20 = 0.4, 10/10 = 1.0, 12/40 = 0.3.
    found = ratio([8.0, 10.0, 12.0], [20.0, 10.0, 40.0])

    assert found is not None
    assert (found.median, found.lowest, found.highest) == pytest.approx((0.5, 0.3, 1.0))


def test_ratio_skips_a_pair_with_a_side_missing_or_zero() -> None:
    assert ratio([1.0, None, 3.0, 4.0], [2.0, 2.0, 0.0, 8.0]) == Spread(0.5, 0.5, 0.5)


def test_ratio_without_any_whole_pair_is_none() -> None:
    assert ratio([None], [1.0]) is None
