"""The light connection of the echo and control measurements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bench.raw_http import ConnectionLost, connect, request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@asynccontextmanager
async def server(*answers: Sequence[bytes]) -> AsyncIterator[int]:
    """Answers one request after the other, each in the given pieces; then it closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for pieces in answers:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                for _ in range(3):  # lets the client read each piece on its own
                    await asyncio.sleep(0)
        writer.close()

    started = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with started:
        yield started.sockets[0].getsockname()[1]


async def test_several_requests_share_one_connection() -> None:
    second = b"HTTP/1.1 503 No\r\ncontent-length:2\r\nX: y\r\n\r\nno"
    async with server([OK], [second]) as port:
        connection = await connect(port)

        assert await connection.ask(request("GET", "/")) == (200, b"hello")
        assert await connection.ask(request("GET", "/")) == (503, b"no")
        connection.close()


async def test_an_answer_may_come_in_any_pieces() -> None:
    async with server([OK[i : i + 1] for i in range(len(OK))]) as port:
        connection = await connect(port)

        assert await connection.ask(request("GET", "/")) == (200, b"hello")
        connection.close()


async def test_a_length_inside_the_body_is_not_taken_for_the_header() -> None:
    async with server([b"HTTP/1.1 200 OK\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n"]) as port:
        connection = await connect(port)

        with pytest.raises(ConnectionLost, match="no Content-Length"):
            await connection.ask(request("GET", "/"))
        connection.close()


async def test_a_connection_that_closes_before_the_answer_is_lost() -> None:
    async with server([OK[:-1]]) as port:
        connection = await connect(port)

        with pytest.raises(ConnectionLost):
            await connection.ask(request("GET", "/"))


async def test_a_closed_connection_takes_no_request() -> None:
    async with server([OK[:-1]]) as port:
        connection = await connect(port)
        with pytest.raises(ConnectionLost):
            await connection.ask(request("GET", "/"))

        with pytest.raises(ConnectionLost, match="is closed"):
            await connection.ask(request("GET", "/"))


def test_a_request_carries_token_and_length() -> None:
    built = request("POST", "/x", b'{"a": 1}', token="t")

    head, _, body = built.partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /x HTTP/1.1"
    assert b"Authorization: Bearer t" in head.splitlines()
    assert b"Content-Length: 8" in head.splitlines()
    assert body == b'{"a": 1}'
