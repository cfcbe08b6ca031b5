"""What a request's body may be: JSON by its header, not longer than the limit, and there in time.

The first two are known from the headers, before a byte of the body is read. Only a body without a declared length is
counted while it arrives.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final

from starlette.types import Message, Receive

from openai_compat.errors import RequestTooLarge, RequestTooSlow, UnsupportedMediaType

BODY_GAP_S: Final = 30.0
"""Longest wait for the next piece of a body."""

_JSON = re.compile(rb"application/(?:json|[a-z0-9!#$&^_.-]+\+json)")


def check_headers(headers: Iterable[tuple[bytes, bytes]], limit_bytes: int) -> int | None:
    """The declared length, or None when the body must be counted.

    A missing or empty content type is taken as JSON. Raises RequestTooLarge, UnsupportedMediaType.
    """
    length: int | None = None
    media_type = encoding = b""
    chunked = False
    for name, value in headers:
        if name == b"content-type":
            media_type = value
        elif name == b"content-length":
            length = int(value) if value.isdigit() and len(value) < 20 else None
        elif name == b"transfer-encoding":
            chunked = True
        elif name == b"content-encoding":
            encoding = value.strip().lower()
    if length is not None and length > limit_bytes:
        raise RequestTooLarge(limit_bytes=limit_bytes, size_bytes=length)
    if media_type != b"application/json":
        essence = media_type.partition(b";")[0].strip().lower()
        if essence and not _JSON.fullmatch(essence):
            raise UnsupportedMediaType("The content type must be application/json")
    if encoding not in (b"", b"identity"):
        raise UnsupportedMediaType("A compressed request body is not supported")
    return None if chunked else length


def counted(receive: Receive, limit_bytes: int) -> Receive:
    """`receive` that raises RequestTooLarge once the body has become longer than `limit_bytes`."""
    seen = 0

    async def receive_counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit_bytes:
                raise RequestTooLarge(limit_bytes=limit_bytes)
        return message

    return receive_counted


def timely(receive: Receive, *, total_s: float, gap_s: float = BODY_GAP_S) -> Receive:
    """`receive` that raises RequestTooSlow when the next piece of the body takes longer than `gap_s`, or all of it
    longer than `total_s`: what has arrived of a body that never ends would be held for as long as its client likes.
    What comes after the body (the client leaving) may take its time."""
    ends_at: float | None = None
    is_whole = False

    async def receive_in_time() -> Message:
        nonlocal ends_at, is_whole
        if is_whole:
            return await receive()
        now = asyncio.get_running_loop().time()
        if ends_at is None:
            ends_at = now + total_s
        try:
            async with asyncio.timeout_at(min(ends_at, now + gap_s)):
                message = await receive()
        except TimeoutError:
            raise RequestTooSlow from None
        is_whole = not message.get("more_body", False)
        return message

    return receive_in_time
