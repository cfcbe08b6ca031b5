"""One completion over HTTP, with the time of every piece of text.

A connection serves one request: llama-server closes kept-alive connections early, and both servers are asked alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from bench.sse import SseReader

MODEL = "smollm2-135m-instruct"
TIMEOUT_S = 300.0


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class Answer:
    """What came back, filled while it comes: a request that is cancelled leaves what it had. Times are
    `time.perf_counter()`."""

    sent: float = 0.0
    headers_at: float | None = None
    """When status and headers had arrived."""
    pieces: list[tuple[float, str]] = field(default_factory=list)
    """Text with the time at which the bytes that completed it were read."""
    ended: float | None = None
    """When the whole answer was there; None for one that failed or was cancelled."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    queue_ms: float | None = None
    """`x-llm-queue-ms`, where the server sends it."""
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    @property
    def ttft(self) -> float | None:
        return self.pieces[0][0] - self.sent if self.pieces else None


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    )


def chat(
    content: str, max_tokens: int, *, system: str | None = None, stream: bool = True, model: str = MODEL
) -> dict[str, Any]:
    """A greedy chat completion of exactly `max_tokens` tokens."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    body: dict[str, Any] = {
        "model": model,
        "messages": [*messages, {"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


async def ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], answer: Answer) -> None:
    """Send `body` and fill `answer`. A failure of any kind is in `answer.error`; only cancellation is raised."""
    answer.sent = time.perf_counter()
    try:
        async with session.post(
            f"{url}/v1/chat/completions",
            data=msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
        ) as response:
            answer.headers_at = time.perf_counter()
            if queue_ms := response.headers.get("x-llm-queue-ms"):
                answer.queue_ms = float(queue_ms)
            if response.status != 200:
                answer.error = f"status {response.status}: {(await response.text())[:200]}"
            elif body.get("stream"):
                await _read_stream(response, answer)
            else:
                _take_whole(await response.read(), answer)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        answer.error = f"{type(error).__name__}: {error}"


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer) -> None:
    reader = SseReader()
    async for received in response.content.iter_any():
        now = time.perf_counter()
        for data in reader.feed(received):
            if data == b"[DONE]":
                answer.ended = now
                continue
            chunk = _decoder.decode(data)
            if chunk.error is not None:
                answer.error = f"in the stream: {str(chunk.error)[:200]}"
            for choice in chunk.choices:
                if choice.delta is not None and choice.delta.content:
                    answer.pieces.append((now, choice.delta.content))
                answer.finish_reason = choice.finish_reason or answer.finish_reason
            if chunk.usage:
                _take_usage(chunk.usage, answer)
    if answer.ended is None and answer.error is None:
        answer.error = "the stream ended without [DONE]"
    if answer.error is not None:
        answer.ended = None


def _take_whole(received: bytes, answer: Answer) -> None:
    now = time.perf_counter()
    whole = msgspec.json.decode(received)
    choice = whole["choices"][0]
    answer.pieces.append((now, choice["message"]["content"] or ""))
    answer.finish_reason = choice["finish_reason"]
    _take_usage(whole["usage"], answer)
    answer.ended = now


def _take_usage(usage: Mapping[str, Any], answer: Answer) -> None:
    answer.prompt_tokens = usage.get("prompt_tokens")
    answer.completion_tokens = usage.get("completion_tokens")
    answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
