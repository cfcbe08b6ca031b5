"""How one request's inputs are cut into pieces that fit into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.batching import BatchLimits, Piece, Unbatched, cut


@given(costs=st.lists(st.integers(1, 50)), max_inputs=st.integers(1, 10), max_cost=st.integers(1, 80))
def test_pieces_hold_every_input_in_order_within_the_limits(
    costs: list[int], max_inputs: int, max_cost: int
) -> None:
    limits = BatchLimits(max_inputs, max_cost)

    pieces = list(cut(list(enumerate(costs)), lambda item: item[1], limits))

    assert [item for piece in pieces for item in piece.inputs] == list(enumerate(costs))
    for piece in pieces:
        assert piece.cost == sum(cost for _, cost in piece.inputs)
        assert 1 <= len(piece.inputs) <= max_inputs
        assert piece.cost <= max_cost or len(piece.inputs) == 1


@given(costs=st.lists(st.integers(1, 20), min_size=1), max_inputs=st.integers(1, 10))
def test_no_piece_could_have_taken_the_next_input(costs: list[int], max_inputs: int) -> None:
    limits = BatchLimits(max_inputs, 40)

    pieces = list(cut(costs, lambda cost: cost, limits))

    for piece, following in pairwise(pieces):
        assert len(piece.inputs) == max_inputs or piece.cost + following.inputs[0] > 40


async def test_without_batching_each_piece_is_an_engine_call_of_its_own() -> None:
    calls: list[int] = []

    async def compute(pieces: Sequence[Piece[int]]) -> list[list[int]]:
        calls.append(len(pieces))
        await asyncio.sleep(0)
        return [[-number for number in piece.inputs] for piece in pieces]

    batcher: Unbatched[int, int] = Unbatched(compute, BatchLimits(2, 100))

    answers = await asyncio.gather(*(batcher.compute_all([n, n + 1, n + 2], lambda _: 1) for n in (1, 10)))

    assert answers == [[-1, -2, -3], [-10, -11, -12]]
    assert calls == [1, 1, 1, 1]


async def test_an_error_of_the_engine_ends_the_request() -> None:
    async def compute(_: Sequence[Piece[int]]) -> list[list[int]]:
        raise ValueError("broken")

    batcher: Unbatched[int, int] = Unbatched(compute, BatchLimits(2, 100))

    with pytest.raises(ValueError, match="broken"):
        await batcher.compute_all([1], lambda _: 1)
