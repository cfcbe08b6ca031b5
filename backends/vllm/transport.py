"""HTTP to one server, with what can go wrong on the way as errors of ours."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from backends.errors import BackendUnavailable, ServiceError, UpstreamError
from backends.link import Link, NotHttp, OpenExchange, PeerGone

MAX_ANSWER_BYTES: Final = 64 << 20
"""Longest whole answer (16 choices with 20 alternatives per token are the largest)."""
RETRY_AFTER_S: Final = 2.0
SILENT: Final = "The server does not answer"


class Unreached(Exception):
    """The server produced nothing for this request, and another one may: `error` is what to say if there is none."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(error.message)
        self.error = error


class InternalFailure(Exception):
    """The server answered with status 500, which is `error`, unless it is the request that it cannot serve."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(error.message)
        self.error = error


class Transport:
    """The connections to one server. `url` and `api_key` as `Upstream` takes them."""

    def __init__(self, url: str | Callable[[], str], api_key: str | None) -> None:
        root = _root(url) if isinstance(url, str) else lambda: _root(url())
        self._link = Link(root, exchange=OpenExchange, token=api_key, content_type="application/json")
        self._count = 0
        self._closed = False

    async def send(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        request_id: str | None = None,
        began: Callable[[OpenExchange], None] | None = None,
    ) -> OpenExchange:
        """A request whose response's head is there; the caller closes the exchange. `began`: see `Link.send`.

        Raises: Unreached, UpstreamError; what the exchange was failed with.
        """
        if self._closed:
            raise Unreached(unavailable("This process is shutting down"))
        headers = b""
        if request_id is not None and request_id.isascii() and request_id.isprintable():
            # Ours at the front, so that logs can be joined; a number behind it, because vLLM's ids must differ.
            self._count += 1
            headers = f"x-request-id: {request_id}.{self._count}\r\n".encode()
        try:
            return await self._link.send(
                method, path, body, accept_timeout_s=None, headers=headers, began=began
            )
        except PeerGone:
            why = "The server closed the connection before it answered"
        except NotHttp:
            raise UpstreamError("What answers at the server's address is no HTTP server") from None
        except TimeoutError:
            why = SILENT
        except (ConnectionRefusedError, FileNotFoundError):
            why = "Connection refused"
        except ssl.SSLCertVerificationError:
            why = "The server's certificate is not accepted"
        except ValueError as problem:
            why = f"The server cannot be reached: {problem}"
        except OSError as problem:
            why = f"The server cannot be reached: {problem.strerror or 'no connection'}"
        raise Unreached(unavailable(why)) from None

    async def call(self, method: str, path: str, body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        """As `Upstream.call`."""
        try:
            exchange = await self.send(method, path, body)
        except Unreached as unreached:
            raise unreached.error from None
        try:
            status = await exchange.head()
            return status, exchange.headers, await whole(exchange, MAX_ANSWER_BYTES)
        except PeerGone:
            raise UpstreamError("The server broke off its answer") from None
        except NotHttp:
            raise UpstreamError("The server's answer makes no sense") from None
        finally:
            exchange.close(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Refuse what comes and close what idles."""
        self._closed = True
        self._link.close()


async def whole(exchange: OpenExchange, limit_bytes: int) -> bytes:
    """The body. Raises: UpstreamError beyond the limit, PeerGone, NotHttp."""
    parts = []
    size = 0
    while part := await exchange.read():
        parts.append(part)
        size += len(part)
        if size > limit_bytes:
            raise UpstreamError(f"The server's answer is longer than {limit_bytes} bytes")
    return b"".join(parts)


def unavailable(message: str) -> BackendUnavailable:
    return BackendUnavailable(message, retry_after_s=RETRY_AFTER_S)


def _root(url: str) -> str:
    """The address without the `/v1` that OpenAI's clients want: `/health` and `/tokenize` stand beside it."""
    return url if url.startswith("file:") else url.rstrip("/").removesuffix("/v1")
