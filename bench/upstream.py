"""An OpenAI-compatible server with nothing behind it: it says what the request's last message tells it to say.

Run as `python -m bench.upstream PORT`. The last message of a chat is JSON, such as
`{"chunks": 100, "first_ms": 5, "gap_ms": 10}`. With a gap each chunk's text is the time at which it was written
(`time.monotonic_ns`, which all processes of a machine share); without one the chunks are written as fast as the reader
takes them, each by itself.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

MODEL = "static"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
_HEAD = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"static","choices":['
MODELS = json.dumps(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]}
).encode()
WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "five words of static text"},
                "finish_reason": "stop",
            }
        ],
        "usage": _USAGE,
    }
).encode()


def chunk(text: str) -> bytes:
    """One event with a piece of text, as one chunk of the transfer."""
    choice = json.dumps(
        {"index": 0, "delta": {"content": text}, "finish_reason": None}, separators=(",", ":")
    )
    return _framed(f"data: {_HEAD}{choice}]}}\n\n")


def ending() -> bytes:
    """The finish reason, the usage and the end mark."""
    finish = '{"index":0,"delta":{},"finish_reason":"stop"}'
    usage = _HEAD + '],"usage":' + json.dumps(_USAGE) + "}"
    return _framed(f"data: {_HEAD}{finish}]}}\n\ndata: {usage}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"


def _framed(event: str) -> bytes:
    data = event.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One client; one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    @override
    def pause_writing(self) -> None:
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self._writable.set()

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if not found or len(rest) < size:
            return
        self._received = rest[size:]
        if head.startswith(b"POST"):
            body = json.loads(rest[:size])
            if body.get("stream"):
                self._task = asyncio.ensure_future(self._stream(json.loads(body["messages"][-1]["content"])))
                return
        self._whole(WHOLE if head.startswith(b"POST") else MODELS)

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    async def _stream(self, script: Mapping[str, Any]) -> None:
        write = self._transport.write
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        loop = asyncio.get_running_loop()
        if gap_s := script.get("gap_ms", 0) / 1000:
            due = loop.time() + script.get("first_ms", 0) / 1000
            write(head)
            for _ in range(script["chunks"]):
                await asyncio.sleep(due - loop.time())
                write(chunk(f"{time.monotonic_ns()} "))
                due += gap_s
        else:
            write(head)
            same = chunk(" word")
            for _ in range(script["chunks"]):
                write(same)
                await asyncio.sleep(0)
                await self._writable.wait()
        write(ending())


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(int(sys.argv[1])))
    else:
        uvloop.run(main(int(sys.argv[1])))
