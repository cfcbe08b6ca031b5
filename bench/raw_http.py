"""A keep-alive HTTP/1.1 connection that does next to nothing: the client must not be what is measured.

It writes requests that were built beforehand and reads answers with a `Content-Length`. One request at a time.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from typing_extensions import override

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


class ConnectionLost(OSError):
    """The server closed the connection, or sent what is no such answer."""


class RawConnection(asyncio.Protocol):
    """Made by `connect`. `ask` gives status and body."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None
        self._needed = 0

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._needed:
            head = self._received.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(self._received, 0, head + 2)
            if length is None:
                self._fail(ConnectionLost(f"no Content-Length: {bytes(self._received[:head])!r}"))
                return
            self._needed = head + 4 + int(length[1])
        if len(self._received) >= self._needed:
            whole, needed = bytes(self._received[: self._needed]), self._needed
            del self._received[:needed]
            self._needed = 0
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result((int(whole[9:12]), whole.partition(b"\r\n\r\n")[2]))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(ConnectionLost(str(exc or "closed by the server")))

    def _fail(self, error: ConnectionLost) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Raises: ConnectionLost."""
        if self._transport is None:
            raise ConnectionLost("the connection is closed")
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(port: int) -> RawConnection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(RawConnection, "127.0.0.1", port)
    return connection


def request(method: str, path: str, body: bytes = b"", token: str | None = None) -> bytes:
    """The bytes of one request; a body is JSON."""
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if token:
        head.append(f"Authorization: Bearer {token}")
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body
