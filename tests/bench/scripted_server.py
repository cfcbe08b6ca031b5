"""A server that streams what it is told to: what the client and the loop are tested against."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Script:
    """How the server answers. A request whose content is `hold` gets one piece and then nothing more."""

    status: int = 200
    frames: list[bytes] | None = None
    """The stream as it is; None makes `max_tokens` pieces of text, a usage and `[DONE]`."""
    whole: dict[str, Any] | None = None
    """The JSON of a non-streaming answer."""
    headers: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    held_connection_closed: asyncio.Event = field(default_factory=asyncio.Event)
    _at_once: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.asked.append(body)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            writer.write(f"HTTP/1.1 {self.status} X\r\nConnection: close\r\n{self.headers}\r\n".encode())
            if body["messages"][-1]["content"] == "hold":
                writer.write(piece("held"))
                await reader.read()
                self.held_connection_closed.set()
            elif self.status != 200:
                writer.write(b'{"detail": "no"}')
            elif self.whole is not None:
                writer.write(json.dumps(self.whole).encode())
            else:
                for frame in self.frames if self.frames is not None else frames(body["max_tokens"]):
                    writer.write(frame)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._at_once -= 1
            writer.close()


def piece(text: str) -> bytes:
    return frame({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def frame(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def frames(num_tokens: int) -> list[bytes]:
    """A whole stream of so many pieces, as OpenAI's API sends it."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    return [
        frame({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}),
        *(piece(f" w{i}") for i in range(num_tokens)),
        frame({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
        frame({"choices": [], "usage": usage}),
        b"data: [DONE]\n\n",
    ]


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[str]:
    """Its address, for the time of the block."""
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
        await server.wait_closed()
