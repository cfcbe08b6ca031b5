"""HTTP/1 by hand, for what a well-behaved client library cannot send or hides."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class RawResponse:
    """One response as it came. Header names in lower case; a repeated header keeps its last value."""

    version: str
    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One TCP connection that sends bytes as given and reads responses one after another.

    `host` is the value of the Host header, `prefix` what stands before each path.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        host: str = "localhost",
        prefix: str = "",
        is_tls: bool = False,
        timeout_s: float = 30,
    ) -> None:
        self.host = host
        self.prefix = prefix
        self.socket = socket.create_connection(address, timeout=timeout_s)
        if is_tls:
            self.socket = ssl.create_default_context().wrap_socket(self.socket, server_hostname=address[0])
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self, method: str, path: str, headers: Mapping[str, str], version: str = "1.1") -> bytes:
        """The head of a request to this server; one of HTTP/1.0 names no host."""
        lines = [f"{method} {self.prefix}{path} HTTP/{version}"]
        lines += [f"Host: {self.host}"] if version == "1.1" else []
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("utf-8")

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        head: bool = False,
    ) -> RawResponse:
        """Send a plain HTTP/1.1 request with a Content-Length and read its response."""
        sent = dict(headers or {})
        if body or method in ("POST", "PUT", "PATCH"):
            sent["Content-Length"] = str(len(body))
        self.send(self.head(method, path, sent) + body)
        return self.read(head=head or method == "HEAD")

    def read(self, *, head: bool = False) -> RawResponse:
        """Read one response. Raises ConnectionError if the connection closes before its status line."""
        status_line = self.file.readline()
        if not status_line:
            raise ConnectionError("the connection closed without a response")
        version, status, *_ = status_line.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := self.file.readline().decode("latin-1").rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = b"" if head or status == "204" else self._body(headers)
        return RawResponse(version=version, status=int(status), headers=headers, body=body)

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.file.readline().split(b";")[0], 16):
                body += self.file.read(size)
                self.file.readline()
            self.file.readline()
            return body
        if "content-length" in headers:
            return self.file.read(int(headers["content-length"]))
        return self.file.read()

    @property
    def at_end(self) -> bool:
        """Whether the server has closed the connection (waits up to the time-out)."""
        return self.file.read(1) == b""
