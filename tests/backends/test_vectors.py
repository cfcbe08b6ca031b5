"""Vectors as they travel: length 1, whatever an engine or a server calls a vector."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import BackendFailed, UpstreamError
from backends.vectors import Vector, pack, read_vector

BIG = float(np.finfo(np.float32).max)


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


def unpacked(packed: bytes) -> Vector:
    return np.frombuffer(packed, dtype="<f4")


@given(
    numbers=st.lists(st.floats(-BIG, BIG, width=32), min_size=1, max_size=20),
    dimensions=st.integers(1, 20),
)
def test_a_vector_of_any_size_has_length_one(numbers: list[float], dimensions: int) -> None:
    found = unpacked(pack(vector(*numbers), dimensions)).astype(np.float64)

    assert len(found) == min(dimensions, len(numbers))
    is_zero = not any(numbers[:dimensions])
    assert float(np.linalg.norm(found)) == pytest.approx(0 if is_zero else 1, abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_an_error_and_no_vector(bad: float) -> None:
    with pytest.raises(BackendFailed, match="holds no numbers"):
        pack(vector(0.5, bad))


def test_what_is_cut_away_may_be_anything() -> None:
    assert unpacked(pack(vector(3, 4, math.nan), 2)) == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(
    "value", [[], [[1.0]], ["a"], [1e999], [math.nan], None, "AAA", "AAAA", 1.5, [None], [10**400]]
)
def test_a_servers_vector_that_makes_no_sense_is_refused(value: object) -> None:
    with pytest.raises(UpstreamError):
        read_vector(value)


def test_a_servers_vector_is_read_in_both_forms() -> None:
    assert read_vector([1, 2.5]).tolist() == [1, 2.5]
    assert read_vector("AACAPwAAIEA=").tolist() == [1, 2.5]
