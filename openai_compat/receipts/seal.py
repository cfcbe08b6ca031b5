"""A receipt's own digest, by which a changed one is known. It is no signature: whoever changes a receipt on purpose can
make a new one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

NAME: Final = "sha256"
_EXACT: Final = float(1 << 53)

_encode = msgspec.json.Encoder(order="sorted").encode


def seal_of(receipt: Mapping[str, Any]) -> str:
    """SHA-256 of the receipt without its seal: compact JSON in UTF-8, keys in order, whole numbers without a point.
    However a tool writes the file again, it stays the same.

    Raises: RecursionError for what is nested too deeply.
    """
    content = {name: value for name, value in receipt.items() if name != NAME}
    return hashlib.sha256(_encode(_plain(content))).hexdigest()


def _plain(value: Any) -> Any:
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        # Token ids may be many thousands.
        return value if set(map(type, value)) <= {int, str} else [_plain(item) for item in value]
    return value
