"""Events come whole out of whatever pieces a body arrives in."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import UpstreamError
from backends.vllm import sse
from backends.vllm.sse import EventSplitter


def read(*pieces: bytes) -> list[bytes]:
    splitter = EventSplitter()
    return [payload for piece in pieces for payload in splitter.feed(piece)] + splitter.flush()


def test_several_events_of_one_read_come_at_once():
    assert EventSplitter().feed(b'data: {"a":1}\n\ndata: {"b":2}\n\n') == [b'{"a":1}', b'{"b":2}']


def test_an_event_waits_for_its_end():
    splitter = EventSplitter()

    assert splitter.feed(b'data: {"a"') == []
    assert splitter.feed(b":1}\n") == []
    assert splitter.feed(b"\n") == [b'{"a":1}']


@pytest.mark.parametrize(
    "body",
    [
        b"data: {}\r\n\r\n",
        b"data: {}\r\r",
        b"data:{}\n\n",
        b": keep-alive\n\ndata: {}\n\n",
        b"event: message\nid: 7\ndata: {}\n\n",
        b": a comment\ndata: {}\nretry: 1\n\n",
        b"data: {}\n\n\n\n",
        b"data: {}",
        b"data: {}\r",
        b"error: {}\n\n",
    ],
)
def test_every_spelling_of_an_event_gives_its_payload(body: bytes):
    assert read(body) == [b"{}"]


def test_a_payload_of_several_lines_is_joined():
    assert read(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


def test_a_carriage_return_at_the_end_of_a_read_may_be_half_a_line_break():
    assert read(b"data: {}\r", b"\n\r", b"\ndata: [DONE]\r\n\r\n") == [b"{}", b"[DONE]"]


def test_a_long_event_is_put_together_once():
    piece = b"x" * 1000
    body = [b'data: "', *[piece] * 5000, b'"\n', b"\n"]
    begun = time.process_time()

    assert len(b"".join(read(*body))) == 5_000_002
    assert time.process_time() - begun < 1


def test_an_event_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)

    with pytest.raises(UpstreamError, match="100 bytes"):
        read(b"data: " + b"x" * 95)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1), max_size=5
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_where_a_body_is_cut_changes_nothing(payloads: list[str], line_break: str, cuts: list[int]):
    payloads = [f"{{{text.strip()}}}" for text in payloads]
    body = "".join(f"data: {text}{line_break}{line_break}" for text in payloads).encode()
    places = sorted(min(cut, len(body)) for cut in cuts)
    pieces = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]

    assert read(*pieces) == [text.encode() for text in payloads]
