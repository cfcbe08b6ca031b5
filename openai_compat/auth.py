"""Who is asking: the bearer token, or the client's address where no token is needed.

A token is compared as bytes, in constant time, against every known one; it is kept only as a digest. Only the
`Authorization` header authenticates: never a query parameter, a cookie or the body.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from openai_compat.config import WireConfig
from openai_compat.errors import AuthenticationRequired
from openai_compat.principals import Principal, digest_of, parse_principals, unnamed
from openai_compat.watched_file import WatchedFile

Headers = Iterable[tuple[bytes, bytes]]

_BEARER = re.compile(rb"\s*([A-Za-z]+)[ \t]+(\S+)\s*")
_MAX_HOPS = 32

MISSING = "Missing Authorization header"
MALFORMED = "Invalid Authorization header; expected 'Bearer <token>'"
UNKNOWN = "Invalid token"

_UNKNOWN_CLIENT = Principal(name="ip:unknown")


class Authenticator:
    """Knows the tokens and whose they are. With none configured, `enabled` is False and nobody is asked.

    `file` adds tokens to `tokens`, `principals_file` names callers and their tokens; both are read again when they
    change (`watched_file`). A token in several of them is the named caller's.
    """

    def __init__(
        self,
        tokens: Sequence[bytes] = (),
        *,
        file: Path | None = None,
        principals_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError when a file cannot be used at the start: a service whose tokens are unknown must not come
        up open, nor closed for everybody."""
        self._fixed = [digest_of(token) for token in tokens if token]
        self._tokens = self._principals = None
        if file is not None:
            self._tokens = WatchedFile(file, _tokens_of, what="API tokens", clock=clock)
        if principals_file is not None:
            self._principals = WatchedFile(principals_file, parse_principals, what="principals", clock=clock)
        self._known = self._gather()
        self.enabled = bool(self._known)

    @classmethod
    def from_config(cls, config: WireConfig) -> Authenticator:
        """The tokens of the configuration."""
        return cls(config.api_tokens, file=config.api_tokens_file, principals_file=config.principals_file)

    def principal(self, headers: Headers) -> Principal:
        """Whose token the headers show.

        Raises AuthenticationRequired.
        """
        self._refresh()
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            raise AuthenticationRequired(MISSING)
        parts = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if parts is None or parts[1].lower() != b"bearer":
            raise AuthenticationRequired(MALFORMED)
        digest = digest_of(parts[2])
        found = None
        # All of them, so that the time says nothing about which one matched.
        for other, principal in self._known:
            if hmac.compare_digest(digest, other):
                found = principal
        if found is None:
            raise AuthenticationRequired(UNKNOWN)
        return found

    def named(self) -> tuple[Principal, ...]:
        """The callers of the principals file, as it is now; each once."""
        return tuple({p.name: p for _, p in self._known if p.is_named}.values())

    def _refresh(self) -> None:
        if (self._tokens is not None and self._tokens.refresh()) | (
            self._principals is not None and self._principals.refresh()
        ):
            self._known = self._gather()

    def _gather(self) -> tuple[tuple[bytes, Principal], ...]:
        digests = [*self._fixed, *(self._tokens.value if self._tokens else ())]
        found = {digest: unnamed(digest) for digest in digests}
        if self._principals is not None:
            found.update(self._principals.value)
        return tuple(found.items())


class ClientAddress:
    """The address a request comes from, believing `X-Forwarded-For` only as far as trusted proxies wrote
    it."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        """`trusted` are addresses or networks (`10.0.0.0/8`, `::1`). Raises ValueError for anything else."""
        self._trusted = tuple(ipaddress.ip_network(text.strip(), strict=False) for text in trusted)
        self._is_trusted = lru_cache(maxsize=4096)(self._look_up)

    def principal(self, client: Sequence[object] | None, headers: Headers) -> Principal:
        """Called `ip:` and the client's address; `ip:unknown` for a peer without one (a Unix socket).

        `client` is the scope's `(host, port)`. The header is walked from its end, where the nearest proxy
        wrote, over the trusted addresses; the first other one is the client. What is no address ends the
        walk.
        """
        peer = _address(str(client[0])) if client else None
        if peer is None:
            return _UNKNOWN_CLIENT
        if self._trusted and self._is_trusted(peer):
            hops = [hop for name, value in headers if name == b"x-forwarded-for" for hop in value.split(b",")]
            for hop in reversed(hops[-_MAX_HOPS:]):
                address = _address(hop.decode("latin-1"))
                if address is None:
                    break
                peer = address
                if not self._is_trusted(peer):
                    break
        return Principal(name=f"ip:{peer}")

    def _look_up(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        return any(address.version == net.version and address in net for net in self._trusted)


def parse_tokens(text: bytes) -> tuple[bytes, ...]:
    """Tokens of a file: one a line or separated by commas; blanks around them and `#` comment lines are
    dropped."""
    lines = text.removeprefix(b"\xef\xbb\xbf").splitlines()
    kept = (line for line in lines if not line.lstrip().startswith(b"#"))
    return tuple(token for line in kept for part in line.split(b",") if (token := part.strip()))


@lru_cache(maxsize=4096)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """`1.2.3.4`, `1.2.3.4:567`, `::1` or `[::1]:567` as an address; an IPv4 address in IPv6 clothes as
    IPv4."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _tokens_of(text: bytes) -> tuple[bytes, ...]:
    """The digests of a file's tokens. Raises ValueError when there are none."""
    tokens = parse_tokens(text)
    if not tokens:
        raise ValueError("it holds no token")
    return tuple(map(digest_of, tokens))
