"""The reader of event streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sse import SseReader


def test_each_event_is_given_once_in_order() -> None:
    assert list(SseReader().feed(b"data: one\n\ndata: two\n\n")) == [b"one", b"two"]


def test_an_event_comes_only_with_its_blank_line() -> None:
    reader = SseReader()

    assert list(reader.feed(b"data: one\n")) == []
    assert list(reader.feed(b"\n")) == [b"one"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_ending_of_the_standard_is_understood(end: bytes) -> None:
    whole = end.join([b"data: one", b"", b"data: two", b"", b"data: unfinished"])

    assert list(SseReader().feed(whole)) == [b"one", b"two"]


def test_a_comment_and_other_fields_are_no_data() -> None:
    assert list(SseReader().feed(b": keep-alive\n\nevent: x\nid: 1\ndata: one\n\n")) == [b"one"]


def test_data_lines_of_one_event_are_joined_by_a_line_feed() -> None:
    assert list(SseReader().feed(b"data: one\ndata:two\ndata\n\n")) == [b"one\ntwo\n"]


def test_only_one_blank_after_the_colon_is_taken_away() -> None:
    assert list(SseReader().feed(b"data:  one\n\n")) == [b" one"]


@given(
    st.lists(st.sampled_from([b"data: a", b"data: \xf0\x9f\x99\x82", b"", b": c", b"data"])),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
def test_how_the_bytes_were_cut_changes_nothing(lines: list[bytes], end: bytes, data: st.DataObject) -> None:
    whole = b"".join(line + end for line in [*lines, b"data: last", b"", b"x"])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    reader = SseReader()
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    assert [event for piece in pieces for event in reader.feed(piece)] == list(SseReader().feed(whole))
