"""One caller's connection: HTTP/1.1 by the standard library, with the time of each piece that arrives.

Under locust the sockets are gevent's, and what looks as if it blocks lets the other users go on.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

_STALE = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)
_BROKEN = (http.client.HTTPException, OSError)


class TransportFailed(Exception):
    """No answer, or not all of it. `kind`: `connect`, `timeout`, `reset` or `cut`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class Reply:
    """An answer whose headers are there. Read it to its end, or `leave`."""

    def __init__(
        self, owner: Connection, response: http.client.HTTPResponse, sent: float, started: float
    ) -> None:
        self.status = response.status
        self.sent = sent
        """`time.perf_counter()` when the request was about to be sent."""
        self.started = started
        """The same when the headers had been read."""
        self._owner = owner
        self._response = response

    def header(self, name: str) -> str | None:
        return self._response.getheader(name)

    def pieces(self) -> Iterator[tuple[float, bytes]]:
        """Bytes as they arrive, each with its `time.perf_counter()`. Raises: TransportFailed."""
        try:
            if self._response.length is not None:  # read1 forgets how much of a known length it has read
                body = self._response.read()
                yield time.perf_counter(), body
                return
            while received := self._response.read1(65536):
                yield time.perf_counter(), received
        except _BROKEN as error:
            self._owner.close()
            raise _failed(error, kind="cut") from error

    def read(self) -> bytes:
        """The whole body. Raises: TransportFailed."""
        return b"".join(received for _, received in self.pieces())

    def leave(self) -> None:
        """Close the connection under the answer, as a caller does who went away."""
        self._owner.close()


class Connection:
    """Sends one request at a time and keeps the connection for the next. `timeout_s` bounds each wait for bytes."""

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is not an address such as http://127.0.0.1:14011")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._http = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._prefix = parts.path.rstrip("/")
        self._pending: http.client.HTTPResponse | None = None

    def send(self, method: str, path: str, *, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        """Send and wait for the headers. A kept connection that the server has closed meanwhile is opened once more.

        Raises: TransportFailed.
        """
        if self._pending is not None and not self._pending.isclosed():
            self.close()
        is_kept = self._http.sock is not None
        try:
            try:
                return self._try_send(method, path, body, headers)
            except _STALE:
                if not is_kept:
                    raise
                self.close()
                return self._try_send(method, path, body, headers)
        except _BROKEN as error:
            self.close()
            raise _failed(error, kind="reset") from error

    def _try_send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        sent = time.perf_counter()
        if self._http.sock is None:
            try:
                self._http.connect()
            except OSError as error:
                raise _failed(error, kind="connect") from error
        self._http.request(method, self._prefix + path, body=body, headers=dict(headers))
        self._pending = self._http.getresponse()
        return Reply(self, self._pending, sent, time.perf_counter())

    def close(self) -> None:
        """Closes the socket, also under an answer that is half read."""
        if self._pending is not None:
            self._pending.close()
            self._pending = None
        self._http.close()


def _failed(error: Exception, *, kind: str) -> TransportFailed:
    if isinstance(error, TimeoutError):
        kind = "timeout"
    return TransportFailed(kind, f"{type(error).__name__}: {error}")
