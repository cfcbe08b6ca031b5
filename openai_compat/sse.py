"""Server-sent events, as far as this API uses them: unnamed events of one `data:` line, and comments.

A frame's payload is JSON, in which every line break is escaped, so that one line always suffices.
"""

from __future__ import annotations

from typing import Final

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""`x-accel-buffering` keeps nginx from holding events back."""

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment: parsers skip it, proxies see traffic."""


def frame(payload: bytes) -> bytes:
    """One event. `payload` holds no line break."""
    return b"data: " + payload + b"\n\n"
