"""A provider that goes wrong on demand: in OpenAI's format, OpenRouter's (which is nearly the same) and Anthropic's.

A request's model ends in the name of what is to happen, `openai/soak-half_stream-17`. Connections that are open and
exchanges that are under way are counted, so that a caller who leaks either is found out.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

WORDS: Final = ("A ", "river ", "is ", "wäter ", "on ", "its ", "way ", "🌊.")
PACE_S: Final = 0.05
"""Between two chunks of an answer that is left in the middle."""
_USAGE: Final = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}
_PAGE: Final = b"<html><head><title>Bad Gateway</title></head><body><h1>502</h1></body></html>"
_ANTHROPIC_USAGE: Final = {"input_tokens": 9, "output_tokens": 8}


class Exchange:
    """The answering end of one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.is_over = False
        """The connection must not carry another request."""

    async def whole(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
        await self._write(head.encode() + body)

    async def begin(self) -> None:
        await self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    async def event(self, what: dict[str, Any] | str, name: str | None = None) -> None:
        """In two chunks of the transfer, cut in the middle of whatever is there."""
        text = what if isinstance(what, str) else json.dumps(what, ensure_ascii=False)
        data = ((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode()
        half = len(data) // 2
        await self._write(
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:half], data[half:]))
        )

    async def end(self) -> None:
        await self._write(b"0\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


Behaviour = Callable[["Exchange", dict[str, Any]], Awaitable[None]]


def _document(**fields: Any) -> bytes:
    message = {"role": "assistant", "content": "".join(WORDS)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    document = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "soak", "choices": [choice]}
    return json.dumps({**document, "usage": _USAGE, **fields}).encode()


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "soak",
        "choices": [choice],
    }


async def _say(exchange: Exchange, words: tuple[str, ...], pace_s: float = 0.0) -> None:
    await exchange.begin()
    await exchange.event(_chunk({"role": "assistant", "content": ""}))
    for word in words:
        await exchange.event(_chunk({"content": word}))
        await asyncio.sleep(pace_s)


async def _answer(exchange: Exchange, body: dict[str, Any], *, usage: bool = True) -> None:
    if not body.get("stream"):
        await exchange.whole(200, _document(**({} if usage else {"usage": None})))
        return
    await _say(exchange, WORDS)
    await exchange.event(_chunk({}, "stop"))
    if usage:
        await exchange.event({**_chunk({}), "choices": [], "usage": _USAGE})
    await exchange.event("[DONE]")
    await exchange.end()


async def _no_usage(exchange: Exchange, body: dict[str, Any]) -> None:
    await _answer(exchange, body, usage=False)


async def _silence(_: Exchange, __: dict[str, Any]) -> None:
    await asyncio.Event().wait()


async def _half_stream(exchange: Exchange, body: dict[str, Any]) -> None:
    await _say(exchange, WORDS[:3])
    await _silence(exchange, body)


async def _cut_stream(exchange: Exchange, _: dict[str, Any]) -> None:
    await _say(exchange, WORDS[:3])
    exchange.is_over = True


async def _slow_stream(exchange: Exchange, _: dict[str, Any]) -> None:
    await _say(exchange, WORDS * 100, PACE_S)


async def _error_in_stream(exchange: Exchange, _: dict[str, Any]) -> None:
    await _say(exchange, WORDS[:3])
    await exchange.event({"error": {"message": "The engine stumbled", "type": "server_error", "code": 500}})
    await exchange.end()


async def _half_json(exchange: Exchange, _: dict[str, Any]) -> None:
    whole = _document()
    await exchange.whole(200, whole[: len(whole) // 2])


async def _no_choices(exchange: Exchange, body: dict[str, Any]) -> None:
    if not body.get("stream"):
        await exchange.whole(200, _document(choices=[]))
        return
    await exchange.begin()
    await exchange.event({**_chunk({}), "choices": []})
    await exchange.event("[DONE]")
    await exchange.end()


async def _embed(exchange: Exchange, body: dict[str, Any]) -> None:
    given = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": index, "embedding": [0.1] * 64} for index, _ in enumerate(given)]
    document = {
        "object": "list",
        "model": "soak",
        "data": data,
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    await exchange.whole(200, json.dumps(document).encode())


def _refusal(status: int, kind: str, **headers: str) -> Behaviour:
    async def refuse(exchange: Exchange, _: dict[str, Any]) -> None:
        error = {"message": "No, not now", "type": kind, "code": kind}
        await exchange.whole(status, json.dumps({"type": "error", "error": error}).encode(), **headers)

    return refuse


def _page(status: int) -> Behaviour:
    async def answer(exchange: Exchange, _: dict[str, Any]) -> None:
        await exchange.whole(status, _PAGE, "text/html; charset=utf-8")

    return answer


async def _messages(exchange: Exchange, body: dict[str, Any]) -> None:
    """Anthropic's own good answer."""
    begun: dict[str, Any] = {
        "id": "m-1",
        "type": "message",
        "role": "assistant",
        "model": "soak",
        "stop_sequence": None,
    }
    if not body.get("stream"):
        content = [{"type": "text", "text": "".join(WORDS)}]
        whole = {**begun, "content": content, "stop_reason": "end_turn", "usage": _ANTHROPIC_USAGE}
        await exchange.whole(200, json.dumps(whole).encode())
        return
    await exchange.begin()
    start: dict[str, Any] = {
        **begun,
        "content": [],
        "stop_reason": None,
        "usage": {**_ANTHROPIC_USAGE, "output_tokens": 1},
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
            for word in WORDS
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": _ANTHROPIC_USAGE,
        },
        {"type": "message_stop"},
    ]
    for event in events:
        await exchange.event(event, event["type"])
    await exchange.end()


BEHAVIOURS: Final[dict[str, Behaviour]] = {
    "answer": _answer,
    "no_usage": _no_usage,
    "no_choices": _no_choices,
    "rate_limit": _refusal(429, "rate_limit_exceeded", retry_after="7"),
    "no_quota": _refusal(429, "insufficient_quota"),
    "bad_key": _refusal(401, "authentication_error"),
    "bad_request": _refusal(400, "invalid_request_error"),
    "overloaded": _refusal(529, "overloaded_error"),
    "broken": _refusal(500, "server_error"),
    "page": _page(502),
    "page_200": _page(200),
    "half_json": _half_json,
    "half_stream": _half_stream,
    "cut_stream": _cut_stream,
    "error_in_stream": _error_in_stream,
    "slow_stream": _slow_stream,
    "silence": _silence,
}


class Provider:
    """`open_connections` and `busy` are what is there now, `seen` is how often each behaviour was asked for."""

    def __init__(self) -> None:
        self.port = 0
        self.open_connections = 0
        self.connections = 0
        self.busy = 0
        self.seen: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open_connections += 1
        self.connections += 1
        early: bytes | None = b""
        try:
            while early is not None:
                early = await self._one(reader, writer, early)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # `close`; asyncio reports a handler that was cancelled as an error
        finally:
            self._tasks.discard(task)
            self.open_connections -= 1
            writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes
    ) -> bytes | None:
        """One request, of which `early` was read before. What was read of the next one; None: there is none."""
        head = early + await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1]
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        body = json.loads(await reader.readexactly(length))
        name = str(body["model"]).split("-")[1]
        behaviour = BEHAVIOURS[name]
        if path.endswith(b"/embeddings"):
            name, behaviour = "embed", _embed
        elif path.endswith(b"/messages") and name == "answer":
            behaviour = _messages
        self.seen[name] += 1
        exchange = Exchange(writer)
        answering = asyncio.ensure_future(behaviour(exchange, body))
        leaving = asyncio.create_task(reader.read(1))
        self.busy += 1
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            is_done = answering.done() and answering.exception() is None
        finally:
            self.busy -= 1
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        next_byte = leaving.result() if leaving.done() and not leaving.cancelled() else None
        if not is_done or exchange.is_over or next_byte == b"":
            return None
        return next_byte or b""

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def faulty_provider() -> AsyncIterator[Provider]:
    """A running provider on a free port of loopback."""
    one = Provider()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, backlog=1024)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        await one.close()
        await server.wait_closed()
