"""From an exception to what the client reads: status, headers and the one body form.

    {"detail": …, "error": {"message": …, "type": …, "param": …, "code": …}}

`ROWS` is the only place where an error class meets an HTTP number. The wire's own errors are defined here
too; all of them are the caller's fault:

    RequestError
    ├── ValidationFailed        the body (or a query parameter) is not what the schema says
    ├── AuthenticationRequired  no token, a malformed one or an unknown one
    ├── RateLimited             the principal's bucket is empty
    ├── QuotaExceeded           the principal has spent its day's budget
    ├── TooManyAtOnce           the principal runs as many completions as it may
    ├── NotFound                no such path
    ├── MethodNotAllowed        the path exists, the method does not
    ├── RequestTooLarge         the body is longer than the limit
    ├── RequestTooSlow          the body did not arrive in time
    └── UnsupportedMediaType    the body is not JSON by its own header

An exception of any other class is our bug: a 500 with a fixed sentence, whatever it says of itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from backends import errors as be
from models import errors as me

MAX_ENTRIES = 10
"""Entries of a 422's `detail`."""
MAX_INPUT_CHARS = 256
"""Characters of one entry's `input`, so that no body comes back larger than it went in."""
MAX_MESSAGE_CHARS = 2000
INTERNAL_MESSAGE = "The server failed to complete the request"

_encode = msgspec.json.Encoder().encode


class ValidationFailed(be.RequestError):
    """The request does not match the schema.

    `entries` are `{type, loc, msg, input}`, as pydantic lists them; they are cleaned and cut here. `param`
    defaults to the dotted path of the first entry, without its leading `body` or `query`.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]], *, param: str | None = None) -> None:
        every = list(entries)
        self.entries = [_entry(entry) for entry in every[:MAX_ENTRIES]]
        first = self.entries[0] if self.entries else {"loc": [], "msg": "Invalid request"}
        where = param if param is not None else dotted(first["loc"])
        message = f"{where}: {first['msg']}" if where else str(first["msg"])
        if len(every) > 1:
            message += f" (and {len(every) - 1} more)"
        super().__init__(message, param=where)

    @classmethod
    def of(
        cls, loc: Sequence[str | int], msg: str, value: object = None, *, kind: str = "value_error"
    ) -> ValidationFailed:
        """One entry, written by us rather than by pydantic. `loc` begins with `body` or `query`."""
        return cls([{"type": kind, "loc": loc, "msg": msg, "input": value}])


class AuthenticationRequired(be.RequestError):
    """No token, a malformed one or an unknown one. Never says which tokens exist."""


class RateLimited(be.RequestError):
    """The principal has spent its bucket; `retry_after_s` until the next token."""

    def __init__(self, message: str = "Rate limit exceeded", *, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class QuotaExceeded(be.RequestError):
    """The principal has spent what it may in a day; `resets_in_s` until the next one begins."""

    def __init__(self, *, limit_usd: float, resets_in_s: float) -> None:
        super().__init__(
            f"The budget of {limit_usd:g} US dollars for today is spent; it begins anew at 00:00 UTC, "
            f"in {math.ceil(resets_in_s)} s",
            retry_after_s=resets_in_s,
        )


class TooManyAtOnce(be.RequestError):
    """The principal already runs as many completions as it may; the service itself may have room."""

    def __init__(self, limit: int, *, retry_after_s: float) -> None:
        super().__init__(
            f"This caller may run {limit} completions at once, and does", retry_after_s=retry_after_s
        )


class NotFound(be.RequestError):
    """No such path."""

    def __init__(self, message: str = "Not Found") -> None:
        super().__init__(message)


class MethodNotAllowed(be.RequestError):
    """The path exists; `allow` lists the methods it takes."""

    def __init__(self, allow: Iterable[str]) -> None:
        super().__init__("Method Not Allowed")
        self.allow = tuple(sorted(allow))


class RequestTooLarge(be.RequestError):
    """The body is longer than `limit_bytes`."""

    def __init__(self, *, limit_bytes: int, size_bytes: int | None = None) -> None:
        what = "is too large" if size_bytes is None else f"of {size_bytes} bytes is too large"
        super().__init__(f"The request body {what}: the limit is {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class RequestTooSlow(be.RequestError):
    """The body, or its next piece, did not arrive in time."""

    def __init__(self) -> None:
        super().__init__("The request body did not arrive in time")


class UnsupportedMediaType(be.RequestError):
    """The body's own header says that it is not plain JSON."""


class Row(NamedTuple):
    """What one class of error becomes. `retry_after_s`: the hint if the error has none; None: no header."""

    status: int
    type: str
    code: str
    retry_after_s: float | None = None


_INVALID = "invalid_request_error"
_INTERNAL = Row(500, "server_error", "backend_error")

ROWS: dict[type[Exception], Row] = {
    be.ServiceError: _INTERNAL,
    be.RequestError: Row(400, _INVALID, "invalid_request"),
    be.BackendNotAvailable: Row(400, _INVALID, "backend_not_available"),
    be.ContextLengthExceeded: Row(400, _INVALID, "context_length_exceeded"),
    be.UnsupportedParameter: Row(400, _INVALID, "unsupported_parameter"),
    be.InvalidParameter: Row(400, _INVALID, "invalid_value"),
    be.InvalidGrammar: Row(400, _INVALID, "invalid_schema"),
    be.TemplateRefused: Row(400, _INVALID, "template_refused"),
    be.Conflict: Row(409, _INVALID, "conflict"),
    be.NotSupported: Row(501, "not_supported_error", "not_implemented"),
    be.BackendError: _INTERNAL,
    be.BackendFailed: _INTERNAL,
    be.BackendUnavailable: Row(503, "overloaded_error", "backend_unavailable", 2.0),
    be.Draining: Row(503, "overloaded_error", "backend_unavailable", 5.0),
    be.Overloaded: Row(503, "overloaded_error", "concurrency_limit", 1.0),
    be.ModelNotReady: Row(503, "overloaded_error", "backend_unavailable", 5.0),
    be.InsufficientMemory: Row(503, "overloaded_error", "backend_unavailable", 10.0),
    be.BackendTimeout: Row(504, "timeout_error", "timeout"),
    be.UpstreamError: Row(502, "upstream_error", "upstream_error"),
    be.UpstreamAuthFailed: Row(502, "upstream_error", "upstream_auth"),
    be.UpstreamRateLimited: Row(429, "rate_limit_error", "rate_limit_exceeded", 1.0),
    be.UpstreamQuotaExceeded: Row(429, "insufficient_quota", "insufficient_quota"),
    me.ModelError: _INTERNAL,
    me.UnknownModel: Row(404, _INVALID, "model_not_found"),
    me.UnusableModel: Row(422, _INVALID, "validation_error"),
    me.SourceUnavailable: Row(503, "overloaded_error", "backend_unavailable", 10.0),
    ValidationFailed: Row(422, _INVALID, "validation_error"),
    AuthenticationRequired: Row(401, "authentication_error", "invalid_api_key"),
    RateLimited: Row(429, "rate_limit_error", "rate_limit_exceeded", 1.0),
    QuotaExceeded: Row(429, "insufficient_quota", "insufficient_quota", 3600.0),
    TooManyAtOnce: Row(429, "rate_limit_error", "concurrency_limit", 1.0),
    NotFound: Row(404, _INVALID, "not_found"),
    MethodNotAllowed: Row(405, _INVALID, "method_not_allowed"),
    RequestTooLarge: Row(413, _INVALID, "request_too_large"),
    RequestTooSlow: Row(408, "timeout_error", "timeout"),
    UnsupportedMediaType: Row(415, _INVALID, "unsupported_media_type"),
}
"""Class -> what it becomes. Every class of the three trees has its own row; a test walks them."""

CODES: frozenset[str] = frozenset(row.code for row in ROWS.values())
"""Every value `error.code` can take: a bounded set, so it may be a metric label."""


def known_error(exc: BaseException) -> Exception:
    """`exc` itself when `ROWS` knows it; what it stands for when it is the framework's; else a hidden 500.

    Unwraps a group of one, and the framework's own errors: a schema's, and `HTTPException` (404, 405, a body
    that could not be read because of one of our errors).
    """
    exc = _unwrapped(exc)
    if isinstance(exc, be.ServiceError | me.ModelError):
        return exc
    if isinstance(exc, RequestValidationError):
        return from_pydantic(exc.errors(), prefix=())
    if isinstance(exc, HTTPException):
        return _from_http_exception(exc)
    return be.BackendFailed(INTERNAL_MESSAGE)


def is_internal(exc: BaseException) -> bool:
    """True when `exc` is a bug of ours, whose own words go to the log and never to the client."""
    exc = _unwrapped(exc)
    return not isinstance(exc, be.ServiceError | me.ModelError | HTTPException | RequestValidationError)


def error_row(exc: BaseException) -> Row:
    """Status, type and code of `exc`: its own row, or the nearest ancestor's."""
    known = known_error(exc)
    return next(ROWS[cls] for cls in type(known).__mro__ if cls in ROWS)


def error_status(exc: BaseException) -> int:
    """The HTTP status of `exc`."""
    return error_row(exc).status


def error_object(exc: BaseException) -> dict[str, Any]:
    """The `error` half of the body, as a dict of JSON values."""
    known = known_error(exc)
    row = error_row(known)
    param = (
        "model" if isinstance(known, me.UnknownModel | me.UnusableModel) else getattr(known, "param", None)
    )
    answer: dict[str, Any] = {
        "message": clean_text(_message(known)),
        "type": row.type,
        "param": None if param is None else clean_text(str(param)),
        "code": row.code,
    }
    if isinstance(known, be.ContextLengthExceeded):
        answer["prompt_tokens"] = known.prompt_tokens
        answer["context_length"] = known.context_length
    return answer


def error_document(exc: BaseException) -> dict[str, Any]:
    """The whole body as a dict, for the routes that put it beside fields of their own (`/ready`)."""
    known = known_error(exc)
    error = error_object(known)
    detail: object = error["message"]
    if isinstance(known, ValidationFailed):
        detail = known.entries
    elif isinstance(known, me.UnusableModel):
        detail = [{"type": "value_error", "loc": ["body", "model"], "msg": error["message"], "input": None}]
    elif isinstance(known, AuthenticationRequired):
        detail = {"error": "Authentication required", "message": error["message"]}
    return {"detail": detail, "error": error}


def error_body(exc: BaseException) -> bytes:
    """The whole body: `detail` and `error` side by side, valid UTF-8 JSON whatever the error quotes."""
    return _encode(error_document(exc))


def error_headers(exc: BaseException) -> dict[str, str]:
    """Headers that belong to the error itself, names in lower case: `retry-after` in whole seconds >= 1 and
    `retry-after-ms`, `www-authenticate`, `allow`, `x-should-retry`."""
    known = known_error(exc)
    row = error_row(known)
    headers: dict[str, str] = {}
    if row.retry_after_s is not None:
        wait_s = getattr(known, "retry_after_s", None)
        if wait_s is None or not math.isfinite(wait_s):
            wait_s = row.retry_after_s
        wait_ms = max(1, math.ceil(max(0.0, wait_s) * 1000))
        headers["retry-after"] = str(max(1, math.ceil(wait_ms / 1000)))
        headers["retry-after-ms"] = str(wait_ms)
    if isinstance(known, AuthenticationRequired):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(known, QuotaExceeded | be.UpstreamQuotaExceeded):
        # OpenAI's SDKs try a 429 again unless this tells them not to.
        headers["x-should-retry"] = "false"
    elif isinstance(known, MethodNotAllowed):
        headers["allow"] = ", ".join(known.allow)
    elif isinstance(known, RequestTooLarge | RequestTooSlow):
        # The rest of the body is not read, so the connection cannot carry another request.
        headers["connection"] = "close"
    return headers


def error_response(exc: BaseException) -> Response:
    """The answer for an error that is known before the headers went out."""
    return Response(
        error_body(exc),
        status_code=error_status(exc),
        headers=error_headers(exc),
        media_type="application/json",
    )


def sse_error_frame(exc: BaseException) -> bytes:
    """One event `data: {"error": {…}}` with its blank line, for an error after the headers. The caller writes
    `data: [DONE]` after it and closes."""
    return b"data: " + _encode({"error": error_object(exc)}) + b"\n\n"


def from_pydantic(
    errors: Iterable[Mapping[str, Any]], *, prefix: Sequence[str] = ("body",)
) -> ValidationFailed:
    """`ValidationError.errors()` as our error. `prefix` goes before each `loc`; `()` if it is there
    already."""
    return ValidationFailed(
        {
            "type": entry.get("type", "value_error"),
            "loc": [*prefix, *entry.get("loc", ())],
            "msg": str(entry.get("msg", "")).removeprefix("Value error, "),
            "input": entry.get("input"),
        }
        for entry in errors
    )


def dotted(loc: Sequence[str | int]) -> str | None:
    """`["body", "messages", 0, "content"]` -> `messages.0.content`; None for the whole body."""
    parts = [str(part) for part in loc]
    if parts and parts[0] in ("body", "query", "path", "header"):
        parts = parts[1:]
    return ".".join(parts) or None


def clean_text(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """`text` as valid UTF-8 of at most `limit` characters: a lone surrogate becomes `?`."""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")


def json_safe(value: object, limit: int = MAX_INPUT_CHARS) -> object:
    """`value` as something JSON can hold, at most `limit` characters when written.

    Strings are cut; what is longer than `limit` as JSON becomes the beginning of that JSON, as a string. NaN
    and infinities become strings; depth and number of items are bounded, whatever the caller sent.
    """
    safe = _plain(value, limit, depth=8, budget=[limit])
    if safe is None or isinstance(safe, bool | int | float | str):
        return safe
    text = _encode(safe).decode()
    return safe if len(text) <= limit else text[:limit]


def _plain(value: object, limit: int, *, depth: int, budget: list[int]) -> object:
    budget[0] -= 1
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value, limit)
    if isinstance(value, int):
        # Python refuses to print integers of more than 4300 digits; engines of JSON stop at 64 bits.
        return value if -(2**63) <= value < 2**64 else "a number beyond 64 bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        return clean_text(bytes(value[:limit]).decode("utf-8", "replace"), limit)
    if depth == 0 or budget[0] <= 0:
        return "…"
    if isinstance(value, Mapping):
        answer: dict[str, object] = {}
        for key, item in value.items():
            if budget[0] <= 0:
                break
            answer[clean_text(str(key), limit)] = _plain(item, limit, depth=depth - 1, budget=budget)
        return answer
    if isinstance(value, list | tuple | set | frozenset):
        items: list[object] = []
        for item in value:
            if budget[0] <= 0:
                break
            items.append(_plain(item, limit, depth=depth - 1, budget=budget))
        return items
    return None


def _unwrapped(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    loc = [part if isinstance(part, int) else clean_text(str(part), 128) for part in entry.get("loc", ())]
    return {
        "type": clean_text(str(entry.get("type", "value_error")), 64),
        "loc": loc[:32],
        "msg": clean_text(str(entry.get("msg", "")), 1024),
        "input": json_safe(entry.get("input")),
    }


def _message(exc: Exception) -> str:
    return exc.message if isinstance(exc, be.ServiceError | me.ModelError) else INTERNAL_MESSAGE


def _from_http_exception(exc: HTTPException) -> Exception:
    cause = exc.__cause__
    if isinstance(cause, be.ServiceError | me.ModelError):
        return cause
    detail = exc.detail if isinstance(exc.detail, str) else "Invalid request"
    if exc.status_code == 404:
        return NotFound()
    if exc.status_code == 405:
        allow = (exc.headers or {}).get("Allow", "")
        return MethodNotAllowed(part.strip() for part in allow.split(",") if part.strip())
    if exc.status_code == 401:
        return AuthenticationRequired(detail)
    if exc.status_code == 415:
        return UnsupportedMediaType(detail)
    if 400 <= exc.status_code < 500:
        return be.RequestError(detail)
    return be.BackendFailed(INTERNAL_MESSAGE)
