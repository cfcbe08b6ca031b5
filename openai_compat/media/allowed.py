"""Where links may lead: the entries of `LLM_MEDIA_ALLOW`.

    example.com         that host, on the ports 80 and 443
    *.example.com       every host below it, not itself
    example.com:8443    that host, on that port only
    10.0.0.7  [::1]:80  that very address. Written like this an address need not be public
    *                   every host

A host that is a name is looked up, and every address found has to be public, whichever entry let the name through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from openai_compat.media.addresses import Address, is_public, literal, may_be_named

USUAL_PORTS: Final = frozenset({80, 443})


@dataclass(frozen=True, slots=True)
class _Entry:
    host: str | Address
    """A name in lower case, `*` alone or before its first dot; or an address."""
    port: int | None

    def takes(self, host: str | Address, port: int) -> bool:
        if port not in USUAL_PORTS if self.port is None else port != self.port:
            return False
        if isinstance(self.host, str) and self.host.startswith("*"):
            return self.host == "*" or (isinstance(host, str) and host.endswith(self.host[1:]))
        return self.host == host


class AllowedHosts:
    """The entries of one service. Raises: ValueError for one that is none."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = tuple(map(_entry, entries))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def take(self, host: str, port: int) -> bool:
        """Whether a link may lead there, as far as its text tells."""
        address = literal(host)
        if address is None:
            return any(entry.takes(_name(host), port) for entry in self._entries)
        return any(entry.takes(address, port) for entry in self._entries) and (
            is_public(address) or self.name(address, port)
        )

    def name(self, address: Address, port: int) -> bool:
        """Whether the operator wrote down this very address."""
        return any(entry.host == address and entry.takes(address, port) for entry in self._entries)


def _entry(text: str) -> _Entry:
    host, port = text, ""
    if literal(text.strip("[]")) is None and ":" in text:
        host, _, port = text.rpartition(":")
    number = int(port) if port else None
    if number is not None and not 0 < number < 1 << 16:
        raise ValueError(f"{text!r} names a port that is none")
    address = literal(host.removeprefix("[").removesuffix("]"))
    if address is None:
        return _Entry(_name(host), number)
    if not may_be_named(address):
        raise ValueError(f"{text!r} names an address that nothing is fetched from")
    return _Entry(address, number)


def _name(host: str) -> str:
    return host.lower().removesuffix(".")
