"""A small HTTP/1.1 server whose answers a test writes byte by byte, and whose log the test reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Call:
    """One request as it arrived, and how it ended."""

    connection: int
    """Number of the connection that carried it, 0-based."""
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    answered: bool = False
    """The whole answer was written."""
    client_left: bool = False
    """The connection closed before the answer was complete."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_until_ended(self, patience_s: float = 5.0) -> None:
        async with asyncio.timeout(patience_s):
            await self.ended.wait()


class Wire:
    """The answering end of one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.keep_alive = True

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def whole(
        self, status: int, body: bytes, content_type: str = "application/json", **headers: str
    ) -> None:
        """A complete answer. Names of extra headers are written with `_` for `-`."""
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        await self.raw(
            f"HTTP/1.1 {status} Scripted\r\ncontent-type: {content_type}\r\n"
            f"content-length: {len(body)}\r\n{more}\r\n".encode()
            + body
        )

    async def json(self, status: int, document: object, **headers: str) -> None:
        await self.whole(status, json.dumps(document).encode(), **headers)

    async def begin_stream(self, content_type: str = "text/event-stream") -> None:
        await self.raw(
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )

    async def piece(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def event(self, document: object, name: str | None = None) -> None:
        """One server-sent event; a string goes out as it is."""
        text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
        head = f"event: {name}\n" if name else ""
        await self.piece(f"{head}data: {text}\n\n".encode())

    def hang_up(self) -> None:
        """Close the connection when the script ends, whatever was written."""
        self.keep_alive = False

    def reset(self) -> None:
        self._writer.transport.abort()


Answer = Callable[[Call, Wire], Awaitable[None]]


async def silence(_: Call, __: Wire) -> None:
    """Never answers."""
    await asyncio.Event().wait()


class Upstream:
    """`answer` may be replaced between requests; `answers`, while there are any, are used up first, one a request."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.answers: list[Answer] = []
        self.calls: list[Call] = []
        self.connections = 0
        self.open_connections = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[Any]:
        return [call.body for call in self.calls]

    async def wait_for_call(self, number: int = 0, patience_s: float = 5.0) -> Call:
        async with asyncio.timeout(patience_s):
            while len(self.calls) <= number:  # noqa: ASYNC110 - the request is on its way through a socket
                await asyncio.sleep(0.002)
        return self.calls[number]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self.open_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one_request(number, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # `close`, and asyncio reports a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            self.open_connections -= 1
            writer.close()

    async def _one_request(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split(" ", 2)
        headers: dict[str, str] = {}
        while (header := (await reader.readline()).decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.strip().lower()] = value.strip()
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        call = Call(number, method, path, headers, json.loads(data) if data else None)
        self.calls.append(call)
        wire = Wire(writer)
        script = self.answers.pop(0) if self.answers else self.answer
        answering = asyncio.ensure_future(script(call, wire))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done() and not answering.cancelled() and answering.exception() is None:
                call.answered = True
            else:
                call.client_left = leaving.done()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            call.ended.set()
        return call.answered and wire.keep_alive

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def upstream(answer: Answer) -> AsyncIterator[Upstream]:
    """A running upstream on a free port of loopback."""
    one = Upstream(answer)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        await one.close()
        await server.wait_closed()
