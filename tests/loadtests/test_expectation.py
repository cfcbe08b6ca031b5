"""Bounds and what they say about a run."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.expectation import COUNTS, OF_THE_RUN, OF_TIMES, TIMES, Expectation, is_measure, judge
from loadtests.measures import Window, measures
from loadtests.workload import USERS
from tests.loadtests.test_measures import WORKLOAD, streamed


def holds(measured: dict[str, float], **expected: Any) -> bool:
    return judge([Expectation(**expected)], measured)[0].holds


@pytest.mark.parametrize(("value", "expected"), [(0.0, True), (0.5, True), (0.6, False)])
def test_bounds_are_inclusive(value: float, expected: bool) -> None:
    assert holds({"failed": value}, measure="failed", least=0.0, most=0.5) is expected


def test_ratio_is_of_two_measures() -> None:
    assert holds({"failed": 1, "requests": 100}, measure="failed", over="requests", most=0.01)
    assert not holds({"failed": 2, "requests": 100}, measure="failed", over="requests", most=0.01)


@pytest.mark.parametrize("measured", [{}, {"failed": 0.0}, {"failed": 0.0, "requests": 0.0}])
def test_what_was_not_measured_does_not_hold(measured: dict[str, float]) -> None:
    assert not holds(measured, measure="failed", over="requests", most=1)
    assert holds(measured, measure="failed", over="requests", most=1, is_optional=True)


def test_every_measure_that_a_run_has_can_be_expected() -> None:
    found = measures([streamed(start=1.0)], WORKLOAD, Window(0.0, 2.0), dict.fromkeys(OF_THE_RUN, 0.0))

    assert [name for name in found if not is_measure(name, tuple(USERS))] == []
    assert set(COUNTS) <= set(found)
    assert {f"{time}.{value}" for time in TIMES for value in OF_TIMES} <= set(found)


@pytest.mark.parametrize(
    "name", ["", "ttft", "ttft.p98", "chat", "nobody.failed", "failed.p50", "chat.capacity_per_s"]
)
def test_what_is_no_measure_is_known_before_the_run(name: str) -> None:
    assert not is_measure(name, tuple(USERS))
