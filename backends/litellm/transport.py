"""The connections to providers: one pool for all of them, and what one call's HTTP said of itself.

LiteLLM rewrites errors on their way up (a broken connection becomes a 500, an HTML page an answer). What really came
back is noted here, where it arrives, for whoever translates the error.
"""

from __future__ import annotations

import importlib
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

import aiohttp

from backends.litellm.measure import Measure
from backends.litellm.watch import Tail, Watch, WatchedStream

KEEP_ALIVE_S: Final = 30.0
"""Idle connections are kept this long; providers close theirs after a minute or more."""


class Pool:
    """The connections of this process.

    LiteLLM makes a session per provider, and more beside, and closes them when its own cache thinks so. Here every
    client that it makes is made around one session of ours; where it uses OpenAI's SDK it takes a client from a global,
    without which it would make one per text completion.
    """

    def __init__(self, litellm: Any) -> None:
        """To be made in the event loop that uses it. One at a time: LiteLLM keeps all of this in globals."""
        self._litellm = litellm
        self._session = _open_session()
        handlers = importlib.import_module("litellm.llms.custom_httpx.http_handler")
        self._handler = handlers.AsyncHTTPHandler
        # Its own maker of transports has two names there; the second one stays as it is.
        self._own = self._handler._create_aiohttp_transport
        self._handler.create_aiohttp_transport = staticmethod(self._transport)
        httpx = importlib.import_module("httpx")
        # httpx insists on a class of its own.
        self._watched = type("Watched", (WatchedStream, httpx.AsyncByteStream), {})
        self._client = httpx.AsyncClient(
            transport=self._transport(),
            cookies=handlers.blocked_cookie_jar(),
            timeout=None,  # each call brings its own
        )
        litellm.aclient_session = self._client
        self._forget_clients()

    def _transport(self, **options: Any) -> Any:
        transport = self._own(**{**options, "shared_session": self._session})
        handle = transport.handle_async_request

        async def watched(request: Any) -> Any:
            # What is read along here is not unpacked on its way.
            request.headers["accept-encoding"] = "identity"
            response = await handle(request)
            _keep_at_home(request, response)
            connection = current.get() or Connection()
            is_stream = connection.content_type == "text/event-stream"
            if is_stream:
                connection.watch = Watch()
            connection.measure = Measure(is_stream=is_stream)
            response.stream = self._watched(
                response.stream, connection.measure, connection.watch or connection.tail
            )
            return response

        transport.handle_async_request = watched
        return transport

    def _forget_clients(self) -> None:
        """What was made around another session must not outlive it."""
        self._litellm.in_memory_llm_clients_cache.flush_cache()
        vars(self._litellm).pop("module_level_aclient", None)

    async def aclose(self) -> None:
        if self._litellm.aclient_session is self._client:
            self._litellm.aclient_session = None
            self._handler.create_aiohttp_transport = staticmethod(self._own)
            self._forget_clients()
        await self._client.aclose()
        await self._session.close()


class Connection:
    """What is known of the HTTP exchange of one call. `response` is None until the provider's head arrived, `watch` is
    None unless it is an event stream, `tail` unless somebody wants to see how an answer ends."""

    __slots__ = ("measure", "provider", "response", "tail", "watch")

    def __init__(self, provider: str = "") -> None:
        self.provider = provider
        self.response: aiohttp.ClientResponse | None = None
        self.watch: Watch | None = None
        self.tail: Tail | None = None
        self.measure: Measure | None = None

    @property
    def exceeded(self) -> str | None:
        """Which bound the answer broke. It would break it again: such a call is not tried again."""
        return None if self.measure is None else self.measure.exceeded

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status

    @property
    def content_type(self) -> str:
        """Lower case, without parameters; "" where there is none."""
        if self.response is None:
            return ""
        return self.response.headers.get("content-type", "").partition(";")[0].strip().lower()

    def header(self, name: str) -> str | None:
        return None if self.response is None else self.response.headers.get(name)

    def close(self) -> None:
        """Close the socket unless the answer was read to its end. At once, whoever still holds the response."""
        if self.response is not None:
            self.response.close()


current: Final[ContextVar[Connection | None]] = ContextVar("llm_provider_connection", default=None)
"""The connection of the call that runs in this task; set before LiteLLM is called."""


def _keep_at_home(request: Any, response: Any) -> None:
    """A redirect to somebody else is not followed: it would take the request there, and the key with it."""
    if not response.has_redirect_location:
        return
    target = request.url.join(response.headers["location"])
    here = (request.url.scheme, request.url.host, request.url.port)
    if (target.scheme, target.host, target.port) != here:
        del response.headers["location"]


def _open_session() -> aiohttp.ClientSession:
    """No limit on connections: admission limits requests. No cookies: they would travel between callers."""
    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(_note_response)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=300),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
    )


async def _note_response(
    _: aiohttp.ClientSession, __: SimpleNamespace, params: aiohttp.TraceRequestEndParams
) -> None:
    connection = current.get()
    if connection is not None:
        connection.response = params.response
