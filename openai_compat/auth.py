"""Who is asking: the bearer token, or the client's address where no token is needed.

A token is compared as bytes, in constant time, against every known one; it is kept only as a digest. Only the
`Authorization` header authenticates: never a query parameter, a cookie or the body.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from openai_compat.config import WireConfig
from openai_compat.errors import AuthenticationRequired

Headers = Iterable[tuple[bytes, bytes]]

_log = logging.getLogger(__name__)
_BEARER = re.compile(rb"\s*([A-Za-z]+)[ \t]+(\S+)\s*")
_RECHECK_S = 1.0
_MAX_HOPS = 32

MISSING = "Missing Authorization header"
MALFORMED = "Invalid Authorization header; expected 'Bearer <token>'"
UNKNOWN = "Invalid token"


class Authenticator:
    """Knows the tokens. With none configured, `enabled` is False and nobody is asked.

    `file` adds tokens to `tokens`. It is looked at at most once a second and read again when it changed; a
    file that cannot be read or holds no token leaves the old ones in force and says so in the log.
    """

    def __init__(
        self,
        tokens: Sequence[bytes] = (),
        *,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError when `file` cannot be used at the start: a service whose tokens are unknown must
        not come up open, nor closed for everybody."""
        self._fixed = {_digest(token) for token in tokens if token}
        self._file = file
        self._clock = clock
        self._stamp: tuple[int, int, int] | None = None
        self._checked_at = clock()
        self._digests: tuple[bytes, ...] = tuple(self._fixed)
        self.enabled = bool(self._digests) or file is not None
        if file is not None:
            try:
                self._read(file)
            except (OSError, ValueError) as exc:
                raise ValueError(f"The file of API tokens cannot be used: {_reason(exc)}") from None

    @classmethod
    def from_config(cls, config: WireConfig) -> Authenticator:
        """The tokens of the configuration."""
        return cls(config.api_tokens, file=config.api_tokens_file)

    def principal(self, headers: Headers) -> str:
        """`key:` and the beginning of the token's digest: the same for a token in every worker and after a
        restart.

        Raises AuthenticationRequired.
        """
        self._refresh()
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            raise AuthenticationRequired(MISSING)
        parts = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if parts is None or parts[1].lower() != b"bearer":
            raise AuthenticationRequired(MALFORMED)
        digest = _digest(parts[2])
        known = False
        for other in self._digests:  # all of them, so that the time says nothing about which one matched
            known |= hmac.compare_digest(digest, other)
        if not known:
            raise AuthenticationRequired(UNKNOWN)
        return "key:" + digest.hex()[:12]

    def _refresh(self) -> None:
        if self._file is None:
            return
        now = self._clock()
        if now - self._checked_at < _RECHECK_S:
            return
        self._checked_at = now
        try:
            self._read(self._file)
        except (OSError, ValueError) as exc:
            _log.warning("the file of API tokens cannot be used, the old tokens stay: %s", _reason(exc))

    def _read(self, file: Path) -> None:
        stat = file.stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp:
            return
        tokens = parse_tokens(file.read_bytes())
        self._stamp = stamp
        if not tokens:
            raise ValueError("it holds no token")
        self._digests = tuple(self._fixed | {_digest(token) for token in tokens})


class ClientAddress:
    """The address a request comes from, believing `X-Forwarded-For` only as far as trusted proxies wrote
    it."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        """`trusted` are addresses or networks (`10.0.0.0/8`, `::1`). Raises ValueError for anything else."""
        self._trusted = tuple(ipaddress.ip_network(text.strip(), strict=False) for text in trusted)
        self._is_trusted = lru_cache(maxsize=4096)(self._look_up)

    def principal(self, client: Sequence[object] | None, headers: Headers) -> str:
        """`ip:` and the client's address; `ip:unknown` for a peer without one (a Unix socket).

        `client` is the scope's `(host, port)`. The header is walked from its end, where the nearest proxy
        wrote, over the trusted addresses; the first other one is the client. What is no address ends the
        walk.
        """
        peer = _address(str(client[0])) if client else None
        if peer is None:
            return "ip:unknown"
        if self._trusted and self._is_trusted(peer):
            hops = [hop for name, value in headers if name == b"x-forwarded-for" for hop in value.split(b",")]
            for hop in reversed(hops[-_MAX_HOPS:]):
                address = _address(hop.decode("latin-1"))
                if address is None:
                    break
                peer = address
                if not self._is_trusted(peer):
                    break
        return f"ip:{peer}"

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


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _reason(exc: Exception) -> str:
    return exc.strerror or "it cannot be read" if isinstance(exc, OSError) else str(exc)
