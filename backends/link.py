"""HTTP/1.1 to one peer (a runner, an OpenAI-compatible server), as little of it as is needed, on kept-alive
connections.

A client library's request costs more than everything else between gateway and engine for a short answer,
and none tells apart what matters here: a connection that was stale (repeat it) and a peer that died over
a request (do not). docs/decisions/runner-wire.md has the measurement.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast
from urllib.parse import unquote, urlsplit

import httptools
from typing_extensions import override

IDLE_S = 4.0
"""A connection that idled longer is not used again: uvicorn closes its end at 5 s."""
CONNECT_TIMEOUT_S = 5.0
HIGH_WATER_BYTES = 256 << 10
"""More than this unread: stop reading from the socket until the reader has caught up."""
MAX_HEAD_BYTES = 64 << 10
"""Longest head of a response from a peer that is not ours."""
LINGER_S = 1.0
"""How long a response that is done but not ended may take to end before its connection is given up."""


class PeerGone(Exception):
    """The connection ended before the response did. `head`: the peer had accepted the request."""

    def __init__(self, *, head: bool) -> None:
        super().__init__("the peer closed the connection")
        self.head = head


class NotHttp(Exception):
    """What came back is not an HTTP response."""


class Exchange(asyncio.Protocol):
    """One connection. It carries one request and its response at a time, and becomes idle in between."""

    def __init__(self, idle: list[Exchange], ending: set[Exchange]) -> None:
        self._idle = idle
        self._ending = ending
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._complete = True
        self._error: Exception | None = None
        self._head = False
        self._keep = False
        self.idle_since = 0.0
        self.reused = False

    @property
    def usable(self) -> bool:
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    @property
    def accepted(self) -> bool:
        """The response's head has arrived."""
        return self._head

    @property
    def complete(self) -> bool:
        """The whole response has arrived (it may be unread)."""
        return self._complete

    def begin(self, request: bytes) -> None:
        """Send a whole request; the response is read with `head` and `read`."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._chunks.clear()
        self._buffered = 0
        self._complete = self._head = self._keep = False
        self._transport.write(request)

    async def head(self) -> int:
        """The status, as soon as the peer has accepted the request.

        Raises: PeerGone, NotHttp, or what `fail` was given.
        """
        while not self._head:
            await self._wait()
        return self._parser.get_status_code()

    async def read(self) -> bytes:
        """What has arrived of the body since the last call, waiting for some; b"" at its end.

        Raises: as `head`, and only after everything that arrived was read.
        """
        while not self._chunks:
            if self._complete:
                return b""
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def fail(self, error: Exception) -> None:
        """End the exchange for whoever reads it, and with it the peer's work."""
        if not self._complete:
            self._lose(error)

    def close(self, now: float) -> None:
        """The user is done. An unfinished response takes its connection along, at once; that is the abort."""
        if self._complete and self._keep and self.usable:
            self.idle_since = now
            self.reused = True
            self._idle.append(self)
        else:
            self.drop()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lose(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self.drop()
        self._wake()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A socket's transport is a full one, though uvloop's does not inherit from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        if self._complete:
            self._lose(NotHttp())  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._lose(NotHttp())
            return
        if self._buffered > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None:
            self._error = PeerGone(head=self._head)
        if self in self._idle:
            self._idle.remove(self)
        self._ending.discard(self)
        self._wake()

    def on_message_begin(self) -> None:
        if self._complete:
            # A second response right behind the first: it is nobody's, and the next one would be taken for another's.
            raise NotHttp

    def on_headers_complete(self) -> None:
        self._head = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keep = self._parser.should_keep_alive()  # the parser forgets it after this callback


class OpenExchange(Exchange):
    """An exchange with a server that is not ours: its headers can be read, an interim response (1xx) is skipped,
    a body without a length ends with the connection, and a head has a limit."""

    def __init__(self, idle: list[Exchange], ending: set[Exchange]) -> None:
        super().__init__(idle, ending)
        self.headers: dict[bytes, bytes] = {}
        """Of the response, names in lower case; of a repeated one the last."""
        self._received = 0
        self._released = False
        self._settled = False

    @override
    def begin(self, request: bytes) -> None:
        self.headers = {}
        self._received = 0
        self._settled = False
        super().begin(request)

    @override
    def close(self, now: float) -> None:
        """As above; without effect after `release`."""
        if not self._settled:
            self._settled = True
            super().close(now)

    def release(self, now: float) -> None:
        """The reader needs no more, and the response is about to end: keep the connection once it has, or give it up
        after `LINGER_S`. Unlike `close`, which takes an unfinished response for an aborted one."""
        if self._complete or not self.usable:
            self.close(now)
        elif not self._settled:
            self._settled = self._released = True
            self._ending.add(self)
            asyncio.get_running_loop().call_later(LINGER_S, self._give_up)

    def _give_up(self) -> None:
        if self._released:
            self.drop()

    @override
    def data_received(self, data: bytes) -> None:
        if not self._head:
            self._received += len(data)
        super().data_received(data)
        if not self._head and self._received > MAX_HEAD_BYTES:
            self._lose(NotHttp())

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        is_framed = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        if exc is None and self._error is None and self._head and not self._complete and not is_framed:
            self._complete = True
        super().connection_lost(exc)

    @override
    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._head = True
        else:
            self.headers = {}

    @override
    def on_body(self, body: bytes) -> None:
        if not self._released:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        if not self._head:
            return
        super().on_message_complete()
        if self._released:
            self._released = False
            self._ending.discard(self)
            super().close(asyncio.get_running_loop().time())

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head:  # behind the body they are trailers
            self.headers[name.lower()] = value


E = TypeVar("E", bound=Exchange)


class Link(Generic[E]):
    """The connections to one peer: as many as there are requests under way, and the idle ones.

    `url`: `file:///path.sock`, `http://host:port` or `https://host:port`, or a callable that gives it when
    the first connection is made. `exchange`: the class of the connections. `token`: sent with every request.
    """

    def __init__(
        self,
        url: str | Callable[[], str],
        *,
        exchange: type[E],
        token: str | None,
        content_type: str = "application/msgpack",
    ) -> None:
        if token is not None and not token.isprintable():
            raise ValueError("the token holds a character that cannot be sent in a header")
        self._url = url
        self._exchange = exchange
        authorization = "" if token is None else f"authorization: Bearer {token}\r\n"
        self._fixed = f"{authorization}content-type: {content_type}\r\n"
        self._address = _Address.parse(url) if isinstance(url, str) else None
        self._heads: dict[tuple[str, str], bytes] = {}
        self._idle: list[Exchange] = []
        self._ending: set[Exchange] = set()
        """Released, and not idle yet."""

    async def send(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        accept_timeout_s: float | None,
        headers: bytes = b"",
        began: Callable[[E], None] | None = None,
    ) -> E:
        """Send a request and wait until it is accepted: the response's head is there. The caller closes the
        exchange. `headers`: more of them, each with its line break. `accept_timeout_s`: None waits for ever.
        `began` is given the exchange as soon as the request is on it, for whoever may have to `fail` it.

        A kept-alive connection that turns out to be closed before any of the head came is replaced once by
        a new one.

        Raises: PeerGone, NotHttp; TimeoutError; OSError when nobody listens there; ValueError for a bad
        address.
        """
        loop = asyncio.get_running_loop()
        exchange = self._take_idle(loop.time()) or await self._connect()
        while True:
            reused = exchange.reused
            timer = accept_timeout_s and loop.call_later(accept_timeout_s, exchange.fail, TimeoutError())
            try:
                exchange.begin(self._head(method, path) + b"%d\r\n%b\r\n" % (len(body), headers) + body)
                if began is not None:
                    began(exchange)
                await exchange.head()
                return exchange
            except PeerGone:
                if not reused:
                    raise
            except BaseException:
                exchange.drop()
                raise
            finally:
                if timer:
                    timer.cancel()
            self.close()  # the others that idle were made before the same restart
            exchange = await self._connect()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().drop()
        for exchange in list(self._ending):
            exchange.drop()

    def _take_idle(self, now: float) -> E | None:
        while self._idle:
            exchange = cast("E", self._idle.pop())
            if exchange.usable and now - exchange.idle_since < IDLE_S:
                return exchange
            exchange.drop()
        return None

    async def _connect(self) -> E:
        if self._address is None and not isinstance(self._url, str):
            self._address = _Address.parse(self._url())
        address = self._address
        assert address is not None
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.socket_path is not None:
                _, exchange = await loop.create_unix_connection(self._new, address.socket_path)
            else:
                _, exchange = await loop.create_connection(
                    self._new, address.host, address.port, ssl=address.tls
                )
        return exchange

    def _new(self) -> E:
        return self._exchange(self._idle, self._ending)

    def _head(self, method: str, path: str) -> bytes:
        """The request's head up to the value of content-length."""
        known = self._heads.get((method, path))
        if known is None:
            assert self._address is not None
            known = self._heads[method, path] = (
                f"{method} {self._address.prefix}{path} HTTP/1.1\r\nhost: {self._address.authority}\r\n"
                f"{self._fixed}content-length: "
            ).encode()
        return known


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    authority: str
    port: int = 0
    prefix: str = ""
    socket_path: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str | None) -> _Address:
        """Raises: ValueError with one sentence."""
        if not url:
            raise ValueError("its address is not known yet")
        parts = urlsplit(url)
        if parts.scheme == "file" and parts.path:
            return cls("localhost", "localhost", socket_path=unquote(parts.path))
        if parts.scheme in ("http", "https") and parts.hostname:
            tls = ssl.create_default_context() if parts.scheme == "https" else None
            port = parts.port or (443 if tls else 80)
            authority = parts.netloc.rpartition("@")[2]
            return cls(parts.hostname, authority, port, parts.path.rstrip("/"), tls=tls)
        raise ValueError(f"{url!r} is no such address; file:///path.sock and http://host:port are")
