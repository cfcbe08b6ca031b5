"""Size and type of a body, from its headers and while it arrives."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from openai_compat.body_limit import check_headers, counted, timely
from openai_compat.errors import RequestTooLarge, RequestTooSlow, UnsupportedMediaType

JSON = (b"content-type", b"application/json")


def length(value: bytes) -> tuple[bytes, bytes]:
    """A `Content-Length`."""
    return (b"content-length", value)


@pytest.mark.parametrize("value", [b"0", b"10"])
def test_a_body_within_the_limit_passes(value: bytes) -> None:
    assert check_headers([JSON, length(value)], 10) == int(value)


@pytest.mark.parametrize("value", [b"11", b"9999999999999999999"])
def test_a_longer_one_is_refused_from_its_header(value: bytes) -> None:
    with pytest.raises(RequestTooLarge, match="limit is 10 bytes"):
        check_headers([JSON, length(value)], 10)


@pytest.mark.parametrize(
    "headers", [[], [length(b"-1")], [length(b"9" * 5000)], [(b"transfer-encoding", b"chunked")]]
)
def test_a_body_without_a_usable_length_must_be_counted(headers: list[tuple[bytes, bytes]]) -> None:
    assert check_headers([JSON, *headers], 10) is None


def test_a_length_beside_chunks_is_not_believed() -> None:
    assert check_headers([length(b"5"), (b"transfer-encoding", b"chunked")], 10) is None


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"APPLICATION/Json",
        b"application/json; charset=utf-8",
        b" application/json ;charset=UTF-8",
        b"application/problem+json",
        b"",
    ],
)
def test_json_by_any_spelling_passes(value: bytes) -> None:
    assert check_headers([(b"content-type", value), length(b"2")], 10) == 2


def test_a_missing_type_is_taken_as_json() -> None:
    assert check_headers([length(b"2")], 10) == 2


@pytest.mark.parametrize(
    "value",
    [
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"json",
        b"\xff",
        b"application/jsonx",
    ],
)
def test_any_other_type_is_refused(value: bytes) -> None:
    with pytest.raises(UnsupportedMediaType):
        check_headers([(b"content-type", value), length(b"2")], 10)


def test_the_size_is_looked_at_before_the_type() -> None:
    with pytest.raises(RequestTooLarge):
        check_headers([(b"content-type", b"text/plain"), length(b"11")], 10)


def test_a_compressed_body_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType, match="compressed"):
        check_headers([JSON, (b"content-encoding", b"gzip"), length(b"2")], 10)
    assert check_headers([JSON, (b"content-encoding", b"Identity"), length(b"2")], 10) == 2


class Chunks:
    """A scripted `receive` that counts how often it was asked."""

    def __init__(self, *chunks: bytes) -> None:
        self._left: list[Message] = [
            {"type": "http.request", "body": chunk, "more_body": i < len(chunks) - 1}
            for i, chunk in enumerate(chunks)
        ]
        self.asked = 0

    async def __call__(self) -> Message:
        self.asked += 1
        return self._left.pop(0) if self._left else {"type": "http.disconnect"}


async def test_chunks_up_to_the_limit_pass_untouched() -> None:
    receive = counted(Chunks(b"12345", b"67890"), 10)

    assert [(await receive()).get("body") for _ in range(3)] == [b"12345", b"67890", None]


async def test_the_chunk_that_passes_the_limit_is_refused_and_the_rest_not_read() -> None:
    chunks = Chunks(b"12345", b"678901", b"more")
    receive = counted(chunks, 10)
    await receive()

    with pytest.raises(RequestTooLarge):
        await receive()
    assert chunks.asked == 2


class Trickle:
    """A `receive` that gives each piece of a body after its wait, and never the end of it."""

    def __init__(self, *waits_s: float) -> None:
        self._waits_s = list(waits_s)

    async def __call__(self) -> Message:
        await asyncio.sleep(self._waits_s.pop(0) if self._waits_s else 60.0)
        return {"type": "http.request", "body": b"x", "more_body": True}


async def test_a_body_whose_next_piece_does_not_come_is_refused() -> None:
    receive = timely(Trickle(0.0), total_s=60.0, gap_s=0.01)
    await receive()

    with pytest.raises(RequestTooSlow):
        await receive()


async def test_a_body_that_comes_in_drops_is_refused_when_its_time_is_over() -> None:
    receive = timely(Trickle(*[0.001] * 1000), total_s=0.02, gap_s=60.0)

    async def read() -> None:
        for _ in range(1000):
            await receive()

    with pytest.raises(RequestTooSlow):
        await read()


async def test_after_the_body_the_client_may_stay_as_long_as_it_likes() -> None:
    pieces = Chunks(b"whole")
    never = asyncio.Event()

    async def body_then_silence() -> Message:
        if pieces.asked == 0:
            return await pieces()
        await never.wait()
        raise AssertionError

    receive = timely(body_then_silence, total_s=0.005, gap_s=0.005)
    await receive()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(receive(), 0.05)


async def test_whoever_is_cancelled_while_a_body_comes_is_not_told_of_slowness() -> None:
    receive = timely(Trickle(), total_s=60.0)
    reading = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    reading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading
