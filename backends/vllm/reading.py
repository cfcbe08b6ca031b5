"""The body of an accepted call, read to its end: a stream of events or one document, whichever the server sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from backends.errors import ServiceError, UpstreamError
from backends.link import NotHttp, OpenExchange, PeerGone
from backends.types import EventBatch
from backends.vllm import refusals, transport
from backends.vllm.answers import Answer
from backends.vllm.chunks import Chunk, decode_chunk
from backends.vllm.sse import EventSplitter
from backends.vllm.transport import InternalFailure, Unreached
from models.errors import ModelError

USAGE_WAIT_S: Final = 0.2
"""How long a usage that was not told is waited for after the end mark."""


async def read_answer(
    exchange: OpenExchange, answer: Answer, *, secret: str | None
) -> AsyncGenerator[EventBatch, None]:
    """The events of a response with status 200, each read of the connection as one batch. Releases a connection whose
    stream has come to its end mark; the caller closes every other. `secret`: our key, which an error may quote.

    Raises: Unreached and PeerGone before the first event; InternalFailure; UpstreamError; the errors that a server
    sends inside.
    """
    kind = exchange.headers.get(b"content-type", b"").lower()
    if kind.startswith(b"application/json"):
        document = await transport.whole(exchange, transport.MAX_ANSWER_BYTES)
        batch: EventBatch = []
        answer.take(_decoded(document, answer, secret), batch)
        batch.append(answer.finish())
        yield batch
        return
    if kind.startswith(b"text/html"):
        raise UpstreamError("The server answered with a web page")
    splitter = EventSplitter()
    done = False
    while not done:
        try:
            data = await exchange.read()
        except PeerGone:
            if answer.started:
                raise UpstreamError("The server broke off its answer") from None
            raise
        batch = []
        payloads = splitter.feed(data) if data else splitter.flush()
        done = _take(payloads, answer, batch, secret) or not data
        if answer.overruns:
            done = True
        elif done and data:
            if answer.complete and not answer.has_usage:
                await _late_usage(exchange, splitter, answer)
            exchange.release(asyncio.get_running_loop().time())
        if done:
            batch.append(answer.finish())
        if batch:
            yield batch


def _take(payloads: list[bytes], answer: Answer, batch: EventBatch, secret: str | None) -> bool:
    """Whether the end mark is among them."""
    done = False
    for payload in payloads:
        if payload == b"[DONE]":
            done = True
        else:
            answer.take(_decoded(payload, answer, secret), batch)
    return done


def _decoded(payload: bytes, answer: Answer, secret: str | None) -> Chunk:
    """Raises: UpstreamError, or the error that the payload is."""
    try:
        chunk = decode_chunk(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamError("The server's answer makes no sense") from None
    if chunk.object == "error" or (chunk.error and bytes(chunk.error) != b"null"):
        raise _error_inside(payload, answer, secret)
    return chunk


def _error_inside(
    payload: bytes, answer: Answer, secret: str | None
) -> ServiceError | ModelError | Unreached | InternalFailure:
    """What an error in a 200 means. Its integer code is a status; without one it is the server's failure."""
    status = refusals.status_inside(payload)
    refusal = refusals.read_refusal(status, payload, {}, secret=secret)
    error = refusals.error_of(refusal, model=answer.model, has_chat=answer.is_chat)
    if not answer.started and status in refusals.ELSEWHERE and isinstance(error, ServiceError):
        return Unreached(error)
    if status == 500 and isinstance(error, ServiceError):
        return InternalFailure(error)
    return error


async def _late_usage(exchange: OpenExchange, splitter: EventSplitter, answer: Answer) -> None:
    """Look for a usage behind the end mark, for a moment."""
    rest: EventBatch = []
    try:
        async with asyncio.timeout(USAGE_WAIT_S):
            while not answer.has_usage and (data := await exchange.read()):
                for payload in splitter.feed(data):
                    if payload != b"[DONE]":
                        answer.take(decode_chunk(payload), rest)
    except (TimeoutError, PeerGone, NotHttp, msgspec.DecodeError, UpstreamError):
        return
