"""Bytes of a server-sent event stream to payloads, strictly: whatever the wire should not hold is a violation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DONE = "[DONE]"
Payload = dict[str, Any] | str


class Violation(Exception):
    """The server broke the protocol. `kind` is one of a few words that reports count by."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class FrameReader:
    """Feed it bytes however they were cut; take the payloads that they complete: a dict per JSON frame, `[DONE]`.

    A frame is one `data:` line and a blank line; comment lines begin with a colon. A frame in an open stream that is
    cut anywhere, in a character or between CR and LF, is put together again.

    Raises: Violation `broken-frame` for anything else.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> Iterator[Payload]:
        self._pending += received
        if b"\r" in self._pending:
            held = self._pending.endswith(b"\r")  # its LF may be in the next piece
            text = self._pending[:-1] if held else self._pending
            self._pending = text.replace(b"\r\n", b"\n") + (b"\r" if held else b"")
        while (end := self._pending.find(b"\n\n")) >= 0:
            block, self._pending = self._pending[:end], self._pending[end + 2 :]
            payload = _payload(block)
            if payload is not None:
                yield payload

    def close(self) -> None:
        """No more bytes come. Raises: Violation if a frame was left open."""
        if self._pending.strip():
            raise Violation("broken-frame", f"the stream ended inside a frame: {_shown(self._pending)}")


def _payload(block: bytes) -> Payload | None:
    lines = [line for line in block.split(b"\n") if line and not line.startswith(b":")]
    if not lines:
        return None
    if len(lines) > 1 or not lines[0].startswith(b"data:"):
        raise Violation("broken-frame", f"a frame must be one data line: {_shown(block)}")
    data = lines[0][5:].strip()
    if data == DONE.encode():
        return DONE
    try:
        parsed = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise Violation("broken-frame", f"a frame must hold JSON: {_shown(block)}") from None
    if not isinstance(parsed, dict):
        raise Violation("broken-frame", f"a frame must hold an object: {_shown(block)}")
    return parsed


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _shown(raw: bytes) -> str:
    return repr(raw[:200].decode("utf-8", "replace"))
