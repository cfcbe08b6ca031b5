"""A scripted OpenAI-compatible server on loopback: what it sends and when is written down, what it received is kept.

    async with OpenAIUpstream() as server:
        server.answers(stream(text("a"), text("b"), finish(), usage(3, 2)))
        ...
        assert server.received[0].body["model"] == "m"

Raw bytes over asyncio's streams rather than a framework, so that any malformed answer can be sent.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Received:
    """One request as it came. `closed`: set when its connection ended, by either side."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Wait:
    """A step: nothing is sent until the event is set."""

    event: asyncio.Event


@dataclass
class Hang:
    """A step: nothing more is ever sent; the client has to end it."""


@dataclass
class Close:
    """A step: the connection is closed without the end of the body."""


Step = bytes | Wait | Hang | Close


@dataclass
class Script:
    """One answer. `steps` are written one by one, each in a chunk of its own unless `framing` says otherwise."""

    steps: Sequence[Step]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    framing: str = "chunked"
    """`chunked`, `length`, `none` (the body ends with the connection) or `raw` (the steps are the whole response)."""


class OpenAIUpstream:
    """Answers requests with the scripts it was given, in order; the last one again and again if `repeats`."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.num_connections = 0
        self.models: list[dict[str, Any]] | None = [{"id": "m", "owned_by": "vllm", "max_model_len": 1000}]
        """What `GET /v1/models` lists; None: it is a 404."""
        self.health_status = 200
        self.token_count: int | None = 7
        """What `POST /tokenize` answers; None: it is a 404."""
        self._scripts: deque[Script] = deque()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def answers(self, *scripts: Script) -> None:
        """What the next completions get, one each."""
        self._scripts.extend(scripts)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    @property
    def completions(self) -> list[Received]:
        return [one for one in self.received if one.path.endswith("/completions")]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the port and every connection, as a server that is killed."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        current: Received | None = None
        try:
            while True:
                current = await _read(reader)
                if current is None:
                    return
                self.received.append(current)
                if not await self._answer(self._script_for(current), reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if current is not None:
                current.closed.set()
            writer.transport.abort()

    def _script_for(self, request: Received) -> Script:
        if request.path == "/v1/models":
            return (
                document({"object": "list", "data": self.models}) if self.models is not None else not_found()
            )
        if request.path == "/health":
            return Script([b""], status=self.health_status, framing="length")
        if request.path == "/metrics":
            return Script([b"vllm:up 1\n"], headers={"content-type": "text/plain"}, framing="length")
        if request.path == "/tokenize":
            return not_found() if self.token_count is None else document({"count": self.token_count})
        return self._scripts.popleft() if self._scripts else not_found()

    async def _answer(
        self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection can carry another request."""
        is_raw = script.framing == "raw"
        if not is_raw:
            headers = {"content-type": "text/event-stream; charset=utf-8", **script.headers}
            if script.framing == "chunked":
                headers["transfer-encoding"] = "chunked"
            elif script.framing == "length":
                headers["content-length"] = str(
                    sum(len(step) for step in script.steps if isinstance(step, bytes))
                )
            lines = [f"HTTP/1.1 {script.status} Whatever", *(f"{k}: {v}" for k, v in headers.items() if v)]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            await writer.drain()
        for step in script.steps:
            if isinstance(step, Close):
                writer.close()
                return False
            if isinstance(step, Wait | Hang):
                gone = asyncio.ensure_future(reader.read(1))
                waits = {gone} | (
                    {asyncio.ensure_future(step.event.wait())} if isinstance(step, Wait) else set()
                )
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return False
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
            elif step:
                writer.write(step if script.framing != "chunked" else b"%x\r\n%b\r\n" % (len(step), step))
                await writer.drain()
                await asyncio.sleep(0)
        if script.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        if script.framing == "none" or is_raw:
            writer.close()
            return False
        return True


async def _read(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, raw)


# -- answers ------------------------------------------------------------------------------------------------------


def sse(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], index: int = 0, **choice: Any) -> bytes:
    return sse(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "choices": [{"index": index, "delta": delta, "finish_reason": None, **choice}],
        }
    )


def text(content: str, index: int = 0, **choice: Any) -> bytes:
    return chunk({"content": content}, index, **choice)


def role(index: int = 0) -> bytes:
    return chunk({"role": "assistant", "content": ""}, index)


def finish(reason: str | None = "stop", index: int = 0, **choice: Any) -> bytes:
    return chunk({}, index, finish_reason=reason, **choice)


def counts(prompt_tokens: int, completion_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **more,
    }


def usage(prompt_tokens: int, completion_tokens: int, **more: Any) -> bytes:
    return sse({"id": "chatcmpl-1", "choices": [], "usage": counts(prompt_tokens, completion_tokens, **more)})


def stream(*steps: Step, **options: Any) -> Script:
    """An event stream that ends with the end mark."""
    return Script([*steps, DONE], **options)


def document(value: Any, status: int = 200, **headers: str) -> Script:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Script(
        [body], status=status, headers={"content-type": "application/json", **named}, framing="length"
    )


def whole(content: str, reason: str | None = "stop", **choice: Any) -> Script:
    """A chat completion that is not streamed."""
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "message": message, "finish_reason": reason, **choice}]
    return document({"id": "chatcmpl-1", "choices": choices, "usage": counts(5, 2)})


def refused(status: int, message: str = "", **more: Any) -> Script:
    """vLLM's form of an error: the code is the status."""
    headers = {name: more.pop(name) for name in ("retry_after",) if name in more}
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status, **more}
    return document({"error": error}, status, **headers)


def not_found() -> Script:
    return document({"detail": "Not Found"}, 404)
