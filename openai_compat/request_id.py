"""The name of one request: the caller's own if it is well-formed, else a new one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

HEADER = b"x-request-id"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """`X-Request-ID` of the caller when it is 1–128 of `A-Z a-z 0-9 . _ -` and came once, else a new id."""
    found: bytes | None = None
    for name, value in headers:
        if name == HEADER:
            if found is not None:
                return new_request_id()
            found = value
    if found is not None and _WELL_FORMED.fullmatch(found):
        return found.decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    """`req_` and 24 hexadecimal digits of the system's randomness."""
    return "req_" + os.urandom(12).hex()
