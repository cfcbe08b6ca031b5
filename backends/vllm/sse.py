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

    __slots__ = ("_half", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """Of an event whose end has not come. Put together once: some megabytes come in hundreds of reads."""
        self._size = 0
        self._half = False
        """The last read ended with a carriage return, which may be half a line break."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now.

        Raises: UpstreamError for an event beyond the limit.
        """
        if self._half:
            data, self._half = b"\r" + data, False
        if b"\r" in data:
            # JSON escapes its line breaks, so a bare one can only end a line.
            self._half = data.endswith(b"\r")
            data = data[: len(data) - self._half].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        parts = self._parts
        if parts:
            if b"\n\n" not in data and not (data.startswith(b"\n") and parts[-1].endswith(b"\n")):
                self._keep(data)
                return []
            data = b"".join([*parts, data])
            parts.clear()
            self._size = 0
        *events, rest = data.split(b"\n\n")
        self._keep(rest)
        return [payload for event in events if (payload := _payload(event))]

    def flush(self) -> list[bytes]:
        """What the end of the body leaves: a last event that no blank line ended."""
        payload = _payload(b"".join(self._parts))
        self._parts.clear()
        self._size = 0
        self._half = False
        return [payload] if payload else []

    def _keep(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)
            if self._size > MAX_EVENT_BYTES:
                raise UpstreamError(f"The server sent an event of more than {MAX_EVENT_BYTES} bytes")


def _payload(event: bytes) -> bytes:
    if event.startswith(b"data: {") and b"\n" not in event:
        return event[6:]
    lines = []
    for line in event.split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon and name in (b"data", b"error"):
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines).strip()
