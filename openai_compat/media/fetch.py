"""Pictures that a request names by their address, fetched here and nowhere else.

What a caller names is asked for from inside the operator's network. So, for the link and for every redirect of it:

1. It is http(s), without credentials, and the operator allowed its host and port (`allowed`). From https never to http.
2. Its host is looked up here, and every address found is public (`addresses`). Only one that the operator wrote down
   himself need not be.
3. The connection goes to one of those very addresses: nobody looks the name up a second time. Each socket's address
   is looked at once more when it is made.
4. The answer is a success without a content coding, and no longer than allowed: its bytes are counted as they come.

No proxy is used, no cookie kept, no connection shared between requests. Addresses, links and contents are in no message
and in no log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override
from yarl import URL

from backends.errors import Overloaded
from openai_compat.media.addresses import is_public, literal
from openai_compat.media.allowed import AllowedHosts

MAX_REDIRECTS: Final = 3
MAX_URL_CHARS: Final = 8192
_SCHEMES: Final = frozenset({"http", "https"})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {
    "accept": "image/png, image/jpeg, image/webp, image/gif",
    # A coded answer could become any size; this one is as large as it is sent.
    "accept-encoding": "identity",
    "user-agent": "llm-inference",
}

LookUp = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to addresses, in the order in which they are to be tried."""


class FetchFailed(Exception):
    """The picture was not to be had. The message continues a sentence that names it."""


class NotAllowed(FetchFailed):
    """The operator allows no such link."""


class Fetcher:
    """Made once per process. `look_up` stands for the system's resolver in tests."""

    def __init__(self, allowed: AllowedHosts, *, max_fetches: int, look_up: LookUp | None = None) -> None:
        self._allowed = allowed
        self._places = asyncio.Semaphore(max_fetches)
        self._threads: ThreadPoolExecutor | None = None
        self._max_fetches = max_fetches
        self._look_up = look_up or self._ask_system
        self._session: aiohttp.ClientSession | None = None

    def check(self, url: str) -> URL:
        """What can be told of a link without the network. Raises: FetchFailed, NotAllowed."""
        if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or {*" \\"} & {*url}:
            raise FetchFailed("is no http(s) URL")
        try:
            parsed = URL(url)
            host, port = parsed.host, parsed.port
        except ValueError:
            raise FetchFailed("is no http(s) URL") from None
        return self._checked(parsed, host, port)

    def _checked(self, url: URL, host: str | None, port: int | None) -> URL:
        if url.scheme not in _SCHEMES or not host or port is None:
            raise FetchFailed("is no http(s) URL")
        if url.user is not None or url.password is not None:
            raise FetchFailed("holds credentials")
        if not self._allowed:
            raise NotAllowed("is a link, and this service fetches none (LLM_MEDIA_ALLOW); send a data URL")
        if not self._allowed.take(host, port):
            raise NotAllowed("leads to a host that LLM_MEDIA_ALLOW does not name")
        return url.with_fragment(None)

    async def fetch(self, url: URL, *, max_bytes: int, deadline: float) -> bytes:
        """The bytes of a link that was checked; `deadline` in loop seconds. Cancelling it closes the connection.

        Raises: FetchFailed; Overloaded if other requests' pictures kept it waiting until then.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded("Too many pictures are being fetched") from None
        try:
            async with asyncio.timeout_at(deadline):
                return await self._follow(url, max_bytes)
        except TimeoutError:
            raise FetchFailed("could not be fetched in time") from None
        finally:
            self._places.release()

    async def _follow(self, url: URL, max_bytes: int) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._ask(url, max_bytes)
            if isinstance(answer, bytes):
                return answer
            url = answer
        raise FetchFailed(f"is behind more than {MAX_REDIRECTS} redirects")

    async def _ask(self, url: URL, max_bytes: int) -> bytes | URL:
        """One request: the content, or where it is instead."""
        if self._session is None:
            self._session = self._open_session()
        try:
            async with self._session.get(url, allow_redirects=False) as answer:
                if answer.status in _REDIRECTS:
                    return self._next(url, answer.headers.get("location", ""))
                if answer.status != 200:
                    raise FetchFailed(
                        f"could not be fetched: its server answered with status {answer.status}"
                    )
                if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
                    raise FetchFailed("could not be fetched: its server sent it in a coding of its own")
                if (answer.content_length or 0) > max_bytes:
                    raise FetchFailed(f"is larger than {max_bytes} bytes")
                return await _read(answer.content, max_bytes)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, _Refused):
                    raise FetchFailed("leads to an address that is not public") from None
                cause = cause.__cause__ or cause.__context__
            raise FetchFailed("could not be fetched: its server cannot be reached") from None

    def _next(self, url: URL, location: str) -> URL:
        try:
            if len(location) > MAX_URL_CHARS:
                raise ValueError
            target = url.join(URL(location))
            host, port = target.host, target.port
        except ValueError:
            raise FetchFailed("is behind a redirect that leads nowhere") from None
        if url.scheme == "https" and target.scheme != "https":
            raise FetchFailed("is behind a redirect from https to something else")
        return self._checked(target, host, port)

    def _open_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=_Resolver(self._look_up),
            use_dns_cache=False,
            force_close=True,
            limit=self._max_fetches,
            socket_factory=self._open_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            auto_decompress=False,
            requote_redirect_url=False,
            trust_env=False,
            # The whole has a deadline; parts of it need none.
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def _open_socket(self, info: Any) -> socket.socket:
        """aiohttp passes over names that are addresses already; nothing passes over this."""
        family, kind, protocol, _, place = info
        address = ip_address(place[0])
        if not is_public(address) and not self._allowed.name(address, place[1]):
            raise _Refused
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    async def _ask_system(self, host: str, port: int) -> list[str]:
        """In threads of its own: names that are never answered keep nobody else's waiting."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_fetches, thread_name_prefix="media-names")
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _resolved, host, port)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class _Refused(OSError):
    """An address that may not be connected to. An OSError: the connector passes on no others."""


class _Resolver(AbstractResolver):
    """Gives a connection the addresses that were looked at, so that it looks up nothing itself."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = [(text, literal(text)) for text in await self._look_up(host, port)]
        if not found:
            raise OSError("no address")
        if not all(address is not None and is_public(address) for _, address in found):
            raise _Refused
        return [
            ResolveResult(
                hostname=host,
                host=text,
                port=port,
                family=socket.AF_INET6 if ":" in text else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for text, _ in found
        ]

    @override
    async def close(self) -> None:
        pass


def _resolved(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


async def _read(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in content.iter_any():
        size += len(piece)
        if size > max_bytes:
            raise FetchFailed(f"is larger than {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)
