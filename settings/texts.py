"""What the text of a variable or an override stands for: checked, and turned into what the service uses."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode


def items(value: object) -> object:
    """Comma-separated text as a tuple; blanks around an item and empty items do not count."""
    if isinstance(value, str):
        return tuple(item for item in (part.strip() for part in value.split(",")) if item)
    return value


def tokens(value: object) -> object:
    found = items(value)
    if isinstance(value, str) and not found:
        # Set, but to nothing usable: taking it for "no authentication" would open the service.
        raise ValueError("it holds no token")
    if isinstance(found, tuple) and any(re.search(r"[\s\x00-\x1f\x7f]", str(token)) for token in found):
        raise ValueError("a token holds a blank")
    return found


def secret(value: object) -> object:
    """Without the line break that a secret read from a file often ends in."""
    if isinstance(value, str):
        value = value.strip()
        if not value or re.search(r"[\s\x00-\x1f\x7f]", value):
            raise ValueError("it is blank or holds a blank")
    return value


def redis_url(value: object) -> object:
    if isinstance(value, str):
        parts = urlsplit(value.strip())
        if parts.scheme not in ("redis", "rediss") or not parts.hostname:
            raise ValueError("it is not such an address")
        _ = parts.port  # raises ValueError for a port that is none
    return secret(value)


def budgets(value: object) -> object:
    """`name=dollars` pairs as a mapping."""
    if not isinstance(value, str):
        return value
    found: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        name, equals, amount = (part.strip() for part in item.partition("="))
        if not equals or not re.fullmatch(r"\*|[A-Za-z0-9][A-Za-z0-9._@:-]{0,63}", name):
            raise ValueError(f"{item!r} is no pair name=amount")
        if name in found:
            raise ValueError(f"{name!r} stands there twice")
        found[name] = float(amount)
        if not 0 <= found[name] <= 1e9:
            raise ValueError(f"{amount!r} is no amount")
    if not found:
        raise ValueError("it holds no budget")
    return found


def redis_prefix(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[\x21-\x7e]{1,64}", value):
        raise ValueError("it is no such text")
    return value


def folders(value: object) -> object:
    if isinstance(value, str):
        parts = (part.strip() for part in re.split(rf"[,{re.escape(os.pathsep)}]", value))
        return tuple(path(part) for part in parts if part)
    return value


def path(value: object) -> object:
    return Path(os.path.abspath(Path(value).expanduser())) if isinstance(value, str) else value


def networks(value: object) -> object:
    found = items(value)
    if not isinstance(found, tuple):
        return found
    return tuple(str(ipaddress.ip_network(item, strict=False)) for item in found)


_HOST = re.compile(
    r"(?:\*|(?:\*\.)?(?![\d.]+(?::|$))[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?)(?::[0-9]{1,5})?"
)
_NOT_FETCHED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
        *("::/128", "::ffff:0:0/96", "fe80::/10", "ff00::/8"),
    )
)
"""What no operator means: the metadata of clouds, many hosts at once, none."""


def media_hosts(value: object) -> object:
    """Hosts, in lower case, and addresses in their shortest form, in brackets where they have colons."""
    found = items(value)
    return tuple(map(_media_host, found)) if isinstance(found, tuple) else found


def _media_host(item: str) -> str:
    host, port = item.lower(), ""
    if (parts := re.fullmatch(r"(\[[^\]]*\]|[0-9.]+|[^:]*)(:\d+)?", host)) is not None:
        host, port = parts[1], parts[2] or ""
    if port and not 0 < int(port[1:]) < 1 << 16:
        raise ValueError(f"{item!r} names a port that is none")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        if _HOST.fullmatch(host + port) is None:
            raise ValueError(f"{item!r} is no host") from None
        return host + port
    if any(address in network for network in _NOT_FETCHED):
        raise ValueError(f"{item!r} is an address that nothing is fetched from")
    return (f"[{address}]" if address.version == 6 else str(address)) + port


def origins(value: object) -> object:
    """As browsers write them, since they are compared as text: in lower case, without the port that the scheme has
    anyway."""
    found = items(value)
    return tuple(map(_origin, found)) if isinstance(found, tuple) else found


def _origin(item: str) -> str:
    if item == "*":
        return item
    parts = _ORIGIN.fullmatch(item.lower())
    if parts is None:
        raise ValueError(f"{item!r} is not an origin")
    scheme, host, port = parts.groups()
    return f"{scheme}://{host}" + ("" if port is None or port == _OWN_PORTS.get(scheme) else port)


_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?")
_OWN_PORTS: Final = {"http": ":80", "https": ":443"}


def url(*schemes: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if isinstance(value, str):
            parts = urlsplit(value)
            place = parts.path if parts.scheme == "file" else parts.hostname
            # What is asked for is put behind it.
            has_end = bool(parts.query or parts.fragment)
            if parts.scheme not in schemes or not place or "@" in parts.netloc or has_end:
                raise ValueError("it is not such an address")
            _ = parts.port  # raises ValueError for a port that is none
            return value.rstrip("/")
        return value

    return check


def urls(*schemes: str) -> Callable[[object], object]:
    check = url(*schemes)

    def check_all(value: object) -> object:
        found = items(value)
        if not isinstance(found, tuple):
            return found
        if not found:
            raise ValueError("it holds no address")
        return tuple(check(item) for item in found)

    return check_all


def no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("it is not a number")  # noqa: TRY004 - pydantic turns only a ValueError into a problem
    return value


def shell_words(value: object) -> object:
    return tuple(shlex.split(value)) if isinstance(value, str) else value


Secret = Annotated[SecretStr, BeforeValidator(secret)]
Items = Annotated[tuple[str, ...], NoDecode, BeforeValidator(items)]
HttpUrl = Annotated[str, BeforeValidator(url("http", "https"))]
RunnerUrl = Annotated[str, BeforeValidator(url("http", "https", "file"))]
Int = Annotated[int, BeforeValidator(no_bool)]
Count = Annotated[int, Field(ge=1), BeforeValidator(no_bool)]
Float = Annotated[float, BeforeValidator(no_bool)]
Words = Annotated[tuple[str, ...], BeforeValidator(shell_words)]
