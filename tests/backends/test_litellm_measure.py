"""How much of an answer is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.litellm import measure
from backends.litellm.measure import AnswerTooLong, Measure


def is_taken(*pieces: bytes, is_stream: bool) -> bool:
    measured = Measure(is_stream=is_stream)
    try:
        for piece in pieces:
            measured.feed(piece)
    except AnswerTooLong:
        assert measured.exceeded is not None
        return False
    assert measured.exceeded is None
    return True


@pytest.fixture(autouse=True, scope="module")
def small() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "MAX_ANSWER_BYTES", 30)
        patch.setattr(measure, "MAX_EVENT_BYTES", 10)
        yield


@given(st.lists(st.binary(max_size=8)))
def test_a_whole_answer_is_read_up_to_the_bound_whatever_its_pieces_and_lines(pieces: list[bytes]) -> None:
    assert is_taken(*pieces, is_stream=False) is (len(b"".join(pieces)) <= 30)


@given(st.lists(st.sampled_from([b"x", b"\n", b"xxxx", b"x\nx"]), max_size=12))
def test_no_line_of_a_stream_is_longer_than_the_bound(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    longest = max(map(len, text.split(b"\n")))

    assert is_taken(*pieces, is_stream=True) is (longest <= 10 and len(text) <= 30)
