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

KEEP_ALIVE_S: Final = 30.0
"""Idle connections are kept this long; providers close theirs after a minute or more."""


class Pool:
    """The connections of this process. LiteLLM takes them by two roads: a session that a call hands over, and, where it
    uses OpenAI's SDK, a client that all calls share; without that one it makes a client per text completion."""

    def __init__(self, litellm: Any) -> None:
        """To be made in the event loop that uses it. One pool at a time: LiteLLM keeps the client in a global."""
        self._litellm = litellm
        self.session = _open_session()
        handler = importlib.import_module("litellm.llms.custom_httpx.http_handler")
        aiohttp_transport = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport")
        httpx = importlib.import_module("httpx")
        self._client = httpx.AsyncClient(
            transport=aiohttp_transport.LiteLLMAiohttpTransport(client=self.session, owns_session=False),
            cookies=handler.blocked_cookie_jar(),
            timeout=None,  # each call brings its own
        )
        litellm.aclient_session = self._client

    async def aclose(self) -> None:
        if self._litellm.aclient_session is self._client:
            self._litellm.aclient_session = None
            # What it built around this client must not outlive it.
            self._litellm.in_memory_llm_clients_cache.flush_cache()
        await self._client.aclose()
        await self.session.close()


class Connection:
    """What is known of the HTTP exchange of one call. `response` is None until the provider's head arrived."""

    __slots__ = ("response",)

    def __init__(self) -> None:
        self.response: aiohttp.ClientResponse | None = None

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
