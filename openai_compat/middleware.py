"""The layers around the routes, in their order, which is stated here and nowhere else.

    Edge    request id · clock · access log · request counter
    Cors    headers for browsers (only when origins are configured)
    Gate    path spelling · 404, 405 · OPTIONS, HEAD · token 401 · rate limit 429 · size and type 413, 415
            · time of the body 408 · and the place where every error becomes its answer
    routes  body 422 · model and backend 404, 400 · admission 503

All of it is plain ASGI. A chunk of a stream passes one function per layer that has to see it, and nothing is
buffered.

For the author of routes: `FastAPI(middleware=layers(...), exception_handlers=PASS_ON)`. A route raises; it
never builds an error answer. `record_of(request.scope)` is its notebook; `record.principal` is set on every
limited route.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backends.backstop import Backstop
from openai_compat.access_log import AccessLog
from openai_compat.auth import Authenticator, ClientAddress
from openai_compat.body_limit import check_headers, counted, timely
from openai_compat.config import WireConfig
from openai_compat.cors import Cors
from openai_compat.errors import error_response, error_row, is_internal
from openai_compat.ignored import ignored_headers
from openai_compat.metrics import Metrics
from openai_compat.paths import Route, RouteTable, normalise_path
from openai_compat.rate_limit import RateLimiter
from openai_compat.record import KEY, RequestRecord, record_of
from openai_compat.request_id import request_id

_log = logging.getLogger(__name__)

_LOADS = "/v1/models/load"


def layers(
    config: WireConfig,
    *,
    metrics: Metrics,
    authenticator: Authenticator | None = None,
    limiter: RateLimiter | None = None,
) -> list[Middleware]:
    """The stack, outermost first, for `FastAPI(middleware=…)`. What is not given is made from `config`, for this host
    alone.

    Raises ValueError for a token file that cannot be used, a proxy that is no network, an unknown log level.
    """
    stack = [
        Middleware(
            Edge,
            metrics=metrics,
            access_log=AccessLog(config.access_log_level) if config.access_log else None,
        ),
    ]
    if config.cors_origins:
        stack.append(Middleware(Cors, origins=config.cors_origins))
    stack.append(
        Middleware(
            Gate,
            authenticator=authenticator or Authenticator.from_config(config),
            addresses=ClientAddress(config.trusted_proxies),
            limiter=limiter or RateLimiter.from_config(config),
            max_body_bytes=config.max_body_bytes,
            body_timeout_s=config.request_timeout_s,
            metrics_auth=config.metrics_auth,
            backstop=Backstop(config.backstop_s) if config.backstop_s is not None else None,
        )
    )
    return stack


async def _raise_again(_request: Request, exc: Exception) -> Response:
    raise exc


PASS_ON: dict[int | type[Exception], Callable[[Request, Any], Any]] = {
    HTTPException: _raise_again,
    RequestValidationError: _raise_again,
}
"""For `FastAPI(exception_handlers=…)`: the framework's own errors reach the Gate like all the others."""


class Edge:
    """Makes the request's record, names the request and the fields that it did nothing with in its answer, and writes
    both books when it has ended."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        access_log: AccessLog | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id(scope["headers"]), scope["method"], self._clock())
        scope[KEY] = record
        named = (b"x-request-id", record.request_id.encode("ascii"))

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), named, *ignored_headers(record.ignored)]
            else:
                record.sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_recorded)
        finally:
            self._metrics.request_ended(record)
            if self._access_log is not None:
                self._access_log.write(record, self._clock())


class Gate:
    """Decides, before anything of the body is read, whether a request may reach its route; see the module."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        addresses: ClientAddress,
        limiter: RateLimiter,
        max_body_bytes: int,
        body_timeout_s: float,
        metrics_auth: bool = False,
        backstop: Backstop | None = None,
        routes: RouteTable | None = None,
    ) -> None:
        """`backstop`: for every route but that of loads, which may tell of their progress for hours.
        `routes` None: those of the app that handles the first request (`scope["app"]`)."""
        self._app = app
        self._authenticator = authenticator
        self._addresses = addresses
        self._limiter = limiter
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._metrics_auth = metrics_auth
        self._backstop = backstop
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = record_of(scope)
        try:
            await self._pass(scope, record, receive, send)
        except ClientDisconnect:
            record.cancelled_phase = record.cancelled_phase or "receiving"
        except Exception as exc:
            row = error_row(exc)
            record.error_code = row.code
            if is_internal(exc):
                _log.exception("request %s failed", record.request_id)
            if record.status:
                # Too late for an answer; the server breaks the connection, and nobody takes half for whole.
                raise
            await error_response(exc)(scope, receive, send)

    async def _pass(self, scope: Scope, record: RequestRecord, receive: Receive, send: Send) -> None:
        if self._routes is None:
            self._routes = RouteTable.of(scope["app"].routes)
        root = scope.get("root_path", "")
        sent = scope["path"]
        path = normalise_path(sent.removeprefix(root) if root else sent, scope.get("raw_path"))
        method = scope["method"]

        route = self._routes.find(path)
        record.route = route.template
        if method == "OPTIONS":
            allowed = {"allow": ", ".join(sorted(route.allow))}
            await Response(status_code=204, headers=allowed)(scope, receive, send)
            return
        is_head = method == "HEAD" and "HEAD" not in route.methods
        route.require("GET" if is_head else method)
        receive = await self._admit(scope, route, record, receive)

        if path != sent or is_head:
            scope = {**scope, "path": root + path}
            if is_head:
                scope["method"] = "GET"
                send = _without_body(send)
        if self._backstop is None or route.template == _LOADS:
            await self._app(scope, receive, send)
            return
        with self._backstop.hold(f"{method} {route.template}, request {record.request_id},"):
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, route: Route, record: RequestRecord, receive: Receive) -> Receive:
        headers = scope["headers"]
        protected = not route.public or (self._metrics_auth and route.template == "/metrics")
        caller = None
        if protected and self._authenticator.enabled:
            caller = self._authenticator.principal(headers)
            record.caller, record.principal = caller, caller.name
        if route.public:
            return receive
        if caller is None:
            caller = self._addresses.principal(scope.get("client"), headers)
            record.caller, record.principal = caller, caller.name
        spending = self._limiter.spend(caller)
        if spending is not None:
            await spending
        if scope["method"] != "POST":
            return receive
        length = check_headers(headers, self._max_body_bytes)
        receive = timely(receive, total_s=self._body_timeout_s)
        return counted(receive, self._max_body_bytes) if length is None else receive


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            message = {**message, "body": b""}
        await send(message)

    return send_head
