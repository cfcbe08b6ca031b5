"""How much a provider may send: LiteLLM reads an answer into memory, and an event, however long they are."""

from __future__ import annotations

from typing import Final

MAX_ANSWER_BYTES: Final = 256 << 20
"""Of one answer, whole or streamed. The largest honest ones: 2048 vectors of 3072 numbers, 75 MB of JSON, and a million
tokens in events of their own, 250 MB."""
MAX_EVENT_BYTES: Final = 32 << 20
"""Of one line of an event stream. A picture that a model painted is 10 MB of base64."""


class AnswerTooLong(Exception):
    """Raised where the provider's bytes are read; what LiteLLM makes of it is not looked at."""


class Measure:
    """Of one answer, as far as it was read. `exceeded` says which bound it broke; None while it broke none."""

    __slots__ = ("_in_line", "_is_stream", "_total", "exceeded")

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._total = 0
        self._in_line = 0
        self.exceeded: str | None = None

    def feed(self, data: bytes) -> None:
        """Raises: AnswerTooLong."""
        self._total += len(data)
        # Lines that begin and end in one piece are as short as what the network brings at once.
        self._in_line += end if (end := data.find(b"\n")) >= 0 else len(data)
        if self._total > MAX_ANSWER_BYTES:
            self.exceeded = f"an answer of more than {MAX_ANSWER_BYTES} bytes"
        elif self._is_stream and self._in_line > MAX_EVENT_BYTES:
            self.exceeded = f"an event of more than {MAX_EVENT_BYTES} bytes"
        if self.exceeded is not None:
            raise AnswerTooLong(self.exceeded)
        if end >= 0:
            self._in_line = len(data) - data.rfind(b"\n") - 1
