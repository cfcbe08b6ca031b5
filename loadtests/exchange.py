"""One request and its answer, timed and checked, as a Record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.completion_check import ErrorInStream, StreamCheck, Usage, check_answer
from loadtests.connection import Connection, Reply, TransportFailed
from loadtests.record import Record
from loadtests.sse import FrameReader, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request to send. `max_tokens` is what the answer must not exceed."""

    path: str
    body: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    is_chat: bool = True
    leave_after: int | None = None
    """Pieces after which the caller leaves; 0: as soon as the headers are there."""

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


@dataclass(slots=True)
class Exchange:
    """What came of it. `said` is the model's text, if there is one."""

    record: Record
    said: str = ""


CheckBody = Callable[[Any], Usage | None]


def stream(
    connection: Connection,
    user: str,
    ask: Ask,
    headers: Mapping[str, str],
    on_piece: Callable[[], None] = lambda: None,
) -> Exchange:
    """Send a request with `stream: true` and follow the answer. Never raises: what went wrong is in the record.

    `on_piece` is called with each piece, for whoever counts while it runs.
    """
    exchange = Exchange(_record(user, ask))
    check = StreamCheck(
        is_chat=ask.is_chat,
        wants_usage=bool(((ask.body or {}).get("stream_options") or {}).get("include_usage")),
        max_tokens=ask.max_tokens,
    )

    def follow(reply: Reply) -> None:
        content_type = reply.header("content-type") or ""
        if not content_type.startswith("text/event-stream"):
            reply.leave()
            raise Violation("broken-frame", f"content-type is {content_type!r}")
        try:
            _follow(reply, ask, check, exchange.record, on_piece)
        except (Violation, ErrorInStream):
            reply.leave()
            raise
        finally:
            exchange.said = "".join(check.said)
            _note_usage(exchange.record, check.usage)

    _exchange(connection, ask, headers, exchange.record, follow)
    return exchange


def _follow(reply: Reply, ask: Ask, check: StreamCheck, record: Record, on_piece: Callable[[], None]) -> None:
    if ask.leave_after == 0:
        return _leave(reply, record)
    frames = FrameReader()
    last = reply.sent
    for at, received in reply.pieces():
        for payload in frames.feed(received):
            if not check.take(payload):
                continue
            on_piece()
            if record.ttft is None:
                record.ttft = at - reply.sent
            else:
                record.gaps.append(at - last)
            last = at
            if ask.leave_after is not None and record.pieces >= ask.leave_after:
                return _leave(reply, record)
    frames.close()
    check.end()
    record.e2e = time.perf_counter() - reply.sent
    return None


def _leave(reply: Reply, record: Record) -> None:
    reply.leave()
    record.outcome = "abandoned"


def whole(
    connection: Connection,
    user: str,
    ask: Ask,
    headers: Mapping[str, str],
    check_body: CheckBody | None = None,
) -> Exchange:
    """Send a request whose answer comes whole. `check_body` takes the place of the check of a completion."""
    exchange = Exchange(_record(user, ask))

    def read(reply: Reply) -> None:
        raw = reply.read()
        exchange.record.e2e = time.perf_counter() - reply.sent
        try:
            body = json.loads(raw)
        except ValueError:
            raise Violation("wrong-body", f"no JSON: {raw[:200]!r}") from None
        if check_body is not None:
            _note_usage(exchange.record, check_body(body))
        else:
            usage, exchange.said = check_answer(body, is_chat=ask.is_chat, max_tokens=ask.max_tokens)
            _note_usage(exchange.record, usage)

    _exchange(connection, ask, headers, exchange.record, read)
    return exchange


def _record(user: str, ask: Ask) -> Record:
    return Record(user=user, start=time.time(), max_tokens=ask.max_tokens)


def _note_usage(record: Record, usage: Usage | None) -> None:
    if usage is not None:
        record.prompt_tokens = usage.prompt_tokens
        record.completion_tokens = usage.completion_tokens
        record.cached_tokens = usage.cached_tokens


def _exchange(
    connection: Connection,
    ask: Ask,
    headers: Mapping[str, str],
    record: Record,
    read: Callable[[Reply], None],
) -> None:
    body = None if ask.body is None else json.dumps(ask.body).encode()
    sent_headers = {**headers, **({"Content-Type": "application/json"} if body is not None else {})}
    try:
        reply = connection.send(ask.method, ask.path, body=body, headers=sent_headers)
        record.status = reply.status
        if reply.status == 200:
            read(reply)
        else:
            _note_refusal(reply, record)
    except Violation as violation:
        _fail(record, violation.kind, violation.detail)
    except ErrorInStream as error:
        _fail(record, f"error-in-stream {error.code}", error.message)
    except TransportFailed as failure:
        _fail(record, failure.kind, failure.detail)


def _fail(record: Record, kind: str, detail: str) -> None:
    record.outcome, record.error, record.detail = "failed", kind, detail[:300]


def _note_refusal(reply: Reply, record: Record) -> None:
    """An answer other than 200. Raises: Violation where it is not what callers can act on."""
    raw = reply.read()
    record.e2e = time.perf_counter() - reply.sent
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not ("error" in body or "detail" in body):
        raise Violation("wrong-error-body", f"{reply.status}: {raw[:200]!r}")
    error = body["error"] if isinstance(body.get("error"), dict) else {}
    code = error.get("code") or ""
    retry_after = reply.header("retry-after")
    if reply.status == 429 or (reply.status == 503 and retry_after is not None):
        record.retry_after = _retry_after(reply.status, retry_after)
        record.outcome, record.error = "refused", f"{reply.status} {code}".strip()
        record.detail = str(error.get("message") or body.get("detail"))[:300]
        return
    _fail(record, f"{reply.status} {code}".strip(), str(error.get("message") or body.get("detail")))


def _retry_after(status: int, value: str | None) -> float:
    if value is None:
        raise Violation("no-retry-after", f"{status} without Retry-After")
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise Violation("wrong-retry-after", f"Retry-After is {value!r}, not whole seconds of 1 or more")
    return float(value)
