"""Server-sent events as servers send them: the payloads of what has arrived, whatever the pieces it came in."""

from __future__ import annotations

from typing import Final

from backends.errors import UpstreamError

MAX_EVENT_BYTES: Final = 16 << 20
"""Longest single event; a server that sends more without an end of event would fill the memory."""


class EventSplitter:
    """Cuts a body into the payloads of its `data:` lines. Works on bytes, so a character that two reads share is whole
    again before anybody decodes it.

    A payload of several `data:` lines is joined by line breaks. Comments and other fields are dropped, but an `error:`
    line (older llama-servers) counts as data: it is how they report a failure.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now.

        Raises: UpstreamError for an event beyond the limit.
        """
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            # JSON escapes its line breaks, so a bare one can only end a line. One at the end may be half a CRLF.
            held = b"\r" if data.endswith(b"\r") else b""
            data = data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        events = data.split(b"\n\n")
        self._rest = events.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UpstreamError(f"The server sent an event of more than {MAX_EVENT_BYTES} bytes")
        return [payload for event in events if (payload := _payload(event))]

    def flush(self) -> list[bytes]:
        """What the end of the body leaves: a last event that no blank line ended."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        payload = _payload(rest)
        return [payload] if payload else []


def _payload(event: bytes) -> bytes:
    if event.startswith(b"data: {") and b"\n" not in event:
        return event[6:]
    lines = []
    for line in event.split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon and name in (b"data", b"error"):
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines).strip()
