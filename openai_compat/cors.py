"""CORS, for pages that call the API from a browser. Off unless origins are configured.

Only headers are added here, to answers and errors alike: a preflight is answered by whoever answers
`OPTIONS`. There are no cookies, so credentials are never allowed and `*` is a safe setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_EXPOSED = (
    b"x-request-id, x-llm-backend, x-llm-queue-ms, x-llm-overhead-ms, x-llm-ignored, "
    b"x-llm-fallback-reason, x-llm-cost-usd, x-should-retry, "
    b"retry-after, retry-after-ms"
)
_METHODS = b"GET, HEAD, POST, OPTIONS"
_DEFAULT_HEADERS = b"authorization, content-type, x-request-id"
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,2000}")
_MAX_AGE_S = b"600"


class Cors:
    """Adds the headers for allowed origins. `origins` are exact (`https://a.example:8443`), or `*` for every
    one."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.rstrip("/").encode("latin-1", "replace") for origin in origins)
        self._any = b"*" in self._origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        extra = self._headers(scope)

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        await self._app(scope, receive, send_with_cors)

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        given = dict(scope["headers"])
        origin = given.get(b"origin")
        # An answer that depends on the origin says so even to who sent none, for the sake of caches.
        headers = [] if self._any else [(b"vary", b"origin")]
        if origin is None or not (self._any or origin in self._origins):
            return headers
        headers.append((b"access-control-allow-origin", b"*" if self._any else origin))
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in given:
            asked = given.get(b"access-control-request-headers", b"")
            headers += [
                (b"access-control-allow-methods", _METHODS),
                (
                    b"access-control-allow-headers",
                    asked if _HEADER_NAMES.fullmatch(asked) else _DEFAULT_HEADERS,
                ),
                (b"access-control-max-age", _MAX_AGE_S),
            ]
        else:
            headers.append((b"access-control-expose-headers", _EXPOSED))
        return headers
