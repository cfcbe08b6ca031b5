"""A reader of server-sent events, as far as completions use them: the data of each event, in order."""

from __future__ import annotations

from collections.abc import Iterator


class SseReader:
    """Feed it bytes however they were cut; take the data of each event that they complete.

    Lines end in LF, CR LF or CR. Several `data:` lines of one event are joined by a line feed. Comments and other
    fields are skipped, and so is an event without data. What follows the last blank line is kept for the next call
    and is no event if none comes.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> Iterator[bytes]:
        text = self._pending + received
        held = b""
        if text.endswith(b"\r"):  # the LF that belongs to it may be in the next piece
            text, held = text[:-1], b"\r"
        *lines, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._pending = rest + held
        for line in lines:
            if not line:
                if self._data:
                    data, self._data = b"\n".join(self._data), []
                    yield data
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line == b"data":
                self._data.append(b"")
