"""The mathematics of the reports, against values computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.stats import binned, cumulative, percentile, ratio, summary, time_per_output_token

FLOATS = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.5, 7.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([3.0, 1.0, 2.0], 0.5, 2.0),  # the order they came in does not matter
        ([15, 20, 35, 40, 50], 0.4, 29.0),  # rank 1.6: 20 + 0.6 · (35 - 20)
        ([15, 20, 35, 40, 50], 0.0, 15.0),
        ([15, 20, 35, 40, 50], 1.0, 50.0),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.9, 9.1),  # rank 8.1: 9 + 0.1 · (10 - 9)
        (range(1, 101), 0.95, 95.05),  # rank 94.05
        (range(1, 101), 0.99, 99.01),  # rank 98.01
        ([1.0] * 99 + [1000.0], 0.99, 10.99),  # rank 98.01: 1 + 0.01 · 999
    ],
)
def test_percentile_is_interpolated_between_the_nearest_ranks(
    values: list[float], share: float, expected: float
) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("share", [-0.01, 1.01, 99])
def test_percentile_refuses_a_share_that_is_none(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


@given(FLOATS, st.floats(0, 1), st.floats(0, 1))
def test_percentiles_rise_with_their_share_and_stay_within_the_values(
    values: list[float], one: float, other: float
) -> None:
    low, high = sorted((one, other))

    below, above = percentile(values, low), percentile(values, high)

    assert below is not None
    assert above is not None
    assert min(values) <= below <= above + 1e-6 <= max(values) + 2e-6


def test_summary_by_hand() -> None:
    found = summary([4.0, 1.0, 3.0, 2.0])

    assert found is not None
    assert (found.n, found.mean, found.lowest, found.highest) == (4, 2.5, 1.0, 4.0)
    assert found.p50 == pytest.approx(2.5)
    assert found.p90 == pytest.approx(3.7)  # rank 2.7
    assert found.p95 == pytest.approx(3.85)
    assert found.p99 == pytest.approx(3.97)


def test_summary_of_nothing_is_none() -> None:
    assert summary([]) is None


def test_time_per_output_token_leaves_the_first_out() -> None:
    assert time_per_output_token(1.0, 3.0, 5) == pytest.approx(0.5)  # four gaps in two seconds
    assert time_per_output_token(1.0, 1.0, 1) is None
    assert time_per_output_token(1.0, 1.0, 0) is None


def test_cumulative_distribution_by_hand() -> None:
    assert cumulative([3.0, 1.0, 1.0, 2.0]) == [(1.0, 0.25), (1.0, 0.5), (2.0, 0.75), (3.0, 1.0)]


@given(FLOATS, st.integers(2, 20))
def test_thinned_distribution_keeps_its_ends(values: list[float], points: int) -> None:
    found = cumulative(values, points)

    assert len(found) <= points
    assert found[0][0] == min(values)
    assert found[-1] == (max(values), 1.0)


def test_bins_hold_what_falls_into_them_and_nothing_from_outside() -> None:
    times = [0.9, 1.0, 2.9, 3.0, 5.4, 5.5]

    assert binned(times, float, begin=1.0, end=5.5, width=2.0) == [[1.0, 2.9], [3.0], [5.4]]


def test_bins_without_a_width_are_refused() -> None:
    with pytest.raises(ValueError, match="width"):
        binned([], float, begin=0, end=1, width=0)


def test_ratio_of_what_was_not_measured_is_none() -> None:
    assert ratio(1.0, 4.0) == 0.25
    assert ratio(None, 4.0) is None
    assert ratio(1.0, 0.0) is None
    assert not math.isnan(ratio(0.0, 4.0) or 0.0)
