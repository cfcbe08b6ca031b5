"""One request's notebook: made when it arrives, written by every layer, read once at its end.

It lives in `scope["llm.record"]`, so that the layers share one object and none of them keeps a table of its
own.
"""

from __future__ import annotations

import time
from typing import Any, cast

from openai_compat.principals import Principal

KEY = "llm.record"


class RequestRecord:
    """What the access log, the metrics and the response headers say of one request.

    Times are `time.monotonic()` in seconds. A field that nobody has written stays None and is left out of
    the log. Nothing here is ever a prompt, an answer or a key.
    """

    __slots__ = (
        "backend",
        "caller",
        "cancelled_phase",
        "completion_tokens",
        "cost_usd",
        "error_code",
        "fallback",
        "finish_reason",
        "ignored",
        "method",
        "model",
        "principal",
        "prompt_tokens",
        "queue_s",
        "received_at",
        "request_id",
        "route",
        "sent_bytes",
        "status",
        "ttft_s",
        "waited_s",
    )

    def __init__(self, request_id: str, method: str, received_at: float) -> None:
        self.request_id = request_id
        self.method = method
        self.received_at = received_at
        self.route: str | None = None
        """The route's template, never the path; None for an unknown path."""
        self.status = 0
        """0 until the headers went out."""
        self.sent_bytes = 0
        self.principal: str | None = None
        """Stable name of the caller, never its token."""
        self.caller: Principal | None = None
        """The same with what he may do."""
        self.model: str | None = None
        self.backend: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.queue_s: float | None = None
        self.ttft_s: float | None = None
        self.finish_reason: str | None = None
        self.cancelled_phase: str | None = None
        self.error_code: str | None = None
        self.fallback: str | None = None
        """Why another model than the one asked for was tried."""
        self.cost_usd: float | None = None
        self.ignored: tuple[str, ...] = ()
        """Fields of the body that were accepted and do nothing; told in `x-llm-ignored`, whatever the answer."""
        self.waited_s = 0.0
        """Time spent waiting for somebody else: the client's body, a completion slot, the engine."""

    def waited(self, seconds: float) -> None:
        """Add time that was not ours. `overhead_ms` leaves it out."""
        self.waited_s += seconds

    def overhead_ms(self, now: float | None = None) -> float:
        """Milliseconds of our own work since the request arrived, for `x-llm-overhead-ms`; >= 0."""
        spent_s = (time.monotonic() if now is None else now) - self.received_at - self.waited_s
        return max(0.0, spent_s * 1000.0)


def record_of(scope: Any) -> RequestRecord:
    """The record of the request that `scope` belongs to; a fresh one outside the middleware (tests)."""
    found = scope.get(KEY)
    if found is None:
        found = scope[KEY] = RequestRecord("", scope.get("method", ""), time.monotonic())
    return cast(RequestRecord, found)
