"""The writing side of a streamed answer: when the headers go out, what breaks a silence, how it ends.

The headers wait for the first content (or `header_hold_s`): until then an error can still be a status. Two
tasks write, the one that reads the engine and the one that watches the clock. A lock keeps their messages
apart; it is free in the common case and costs about a microsecond per batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Send

from openai_compat import sse
from openai_compat.errors import sse_error_frame

Headers = list[tuple[bytes, bytes]]

_BODY: Final = "http.response.body"


class StreamWriter:
    """One event stream. `headers` is asked for the response's own headers at the moment they go out."""

    __slots__ = ("_headers", "_lock", "_loop", "_send", "started", "wrote_at")

    def __init__(self, send: Send, headers: Callable[[], Headers]) -> None:
        self._send = send
        self._headers = headers
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self.started = False
        """Whether the headers went out: from then on an error is a frame."""
        self.wrote_at = 0.0
        """Loop time of the last write, in seconds."""

    async def write(self, frames: bytes) -> None:
        """One message with some frames, after the headers if they are still to come."""
        async with self._lock:
            if not self.started:
                await self._start()
            self.wrote_at = self._loop.time()
            await self._send({"type": _BODY, "body": frames, "more_body": True})

    async def open(self) -> None:
        """Send the headers now, if they are still to come."""
        async with self._lock:
            if not self.started:
                await self._start()

    async def keep_alive(self) -> None:
        """A comment, unless somebody is writing: then there is no silence to break."""
        if not self._lock.locked():
            await self.write(sse.KEEP_ALIVE)

    async def close(self, frames: bytes) -> None:
        """The last frames and the end of the response."""
        async with self._lock:
            if not self.started:
                await self._start()
            await self._send({"type": _BODY, "body": frames, "more_body": False})

    async def fail(self, exc: BaseException) -> None:
        """The end of a stream whose headers are out already: one error frame, then the end mark."""
        await self.close(sse_error_frame(exc) + sse.DONE)

    async def _start(self) -> None:
        self.started = True
        self.wrote_at = self._loop.time()
        headers = [*sse.HEADERS, *self._headers()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
