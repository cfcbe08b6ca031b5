"""Frames: what is taken apart, and what is called broken."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.sse import DONE, FrameReader, Payload, Violation


def read(*pieces: bytes) -> list[Payload]:
    reader = FrameReader()
    found = [payload for piece in pieces for payload in reader.feed(piece)]
    reader.close()
    return found


@given(
    st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=3), max_size=5),
    st.lists(st.integers(0, 400), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_frames_are_the_same_however_they_were_cut(
    payloads: list[dict[str, str]], cuts: list[int], ending: bytes
) -> None:
    raw = b"".join(b"data: " + json.dumps(p, ensure_ascii=False).encode() + ending * 2 for p in payloads)
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})

    assert read(*(raw[a:b] for a, b in pairwise(edges))) == payloads


def test_end_and_comments() -> None:
    assert read(b": keep-alive\n\n", b'data: {"a":1}\n\ndata: [DO', b"NE]\n\n") == [{"a": 1}, DONE]


@pytest.mark.parametrize(
    "raw",
    [
        b"data: {\n\n",
        b"data: [1]\n\n",
        b"data: 7\n\n",
        b'data: {"a": NaN}\n\n',
        b'data: {"a":1}\ndata: {"b":2}\n\n',
        b'event: x\ndata: {"a":1}\n\n',
        b'{"a":1}\n\n',
        b'data: {"a":"\xff"}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"a":1}',  # the stream ends inside it
        b'data: {"a":1}\n',
    ],
)
def test_anything_else_is_a_broken_frame(raw: bytes) -> None:
    with pytest.raises(Violation) as caught:
        read(raw)

    assert caught.value.kind == "broken-frame"
