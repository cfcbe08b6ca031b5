r"""What the engine's processes print, as events: one record each, its level kept.

A record of vLLM; a line that ends in \r\n goes on in the next, which repeats the head:

    (EngineCore pid=12) ERROR 11-30 21:40:01 [core.py:1130] Traceback (most recent call last):\r
    (EngineCore pid=12) ERROR 11-30 21:40:01 [core.py:1130]   File "…

Besides: uvicorn's `INFO:     text`, PyTorch's `[W1130 21:48:47.8 utils.cpp:68] text`, Python's own tracebacks, and
whatever a library prints, of which an indented line goes on with the one before. Progress bars, blank lines and the
list of the server's routes are dropped. Prompts are in none of it: the flags that would log requests stay off
(`backends.vllm.options`).
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

MAX_LINE_CHARS: Final = 4096
MAX_EVENT_CHARS: Final = 8192
_MAX_EVENT_LINES: Final = 200
_KEPT_EVENTS: Final = 50
"""Warnings and errors that are remembered, for the reason of a failure."""

_LEVELS: Final = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_HEAD: Final = re.compile(
    rf"(?P<head>\([^()\n]{{1,80}}\) (?P<level>{_LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\n]{{1,160}}\]) ?(?P<text>.*)"
)
_PREFIXED: Final = re.compile(r"\([^()\n]{1,80} pid=\d+\) (?P<text>.*)")
_SHORT_HEAD: Final = re.compile(rf"(?P<level>{_LEVELS}):\s+(?P<text>.*)")
_TORCH_HEAD: Final = re.compile(r"\[(?P<letter>[IWEF])\d{4} [\d:.]+ [^\]]*\] (?P<text>.*)")
_LETTERS: Final = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_BAR: Final = re.compile(r"\d+%(?: Completed)? ?\||\b(?:it/s|s/it)\b")
_ROUTE: Final = re.compile(r"Route: /\S*, |Available routes are:")
_TRACEBACK: Final = "Traceback (most recent call last):"
_BETWEEN_TRACEBACKS: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

Emit = Callable[[int, str], None]
"""Takes a level of `logging` and one line of text."""


class EngineLog:
    """Fed with bytes as they arrive; gives whole events to `emit`.

    An event that may go on is kept until the next one begins, or `flush` says that nothing comes for now.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._rest = b""
        self._continues: str | None = None
        """The head that the next line has if it belongs to the same record."""
        self._level = logging.INFO
        self._lines: list[str] = []
        self._traceback: Literal["no", "calls", "message"] = "no"
        self.complaints: deque[Sequence[str]] = deque(maxlen=_KEPT_EVENTS)
        """The lines of each warning or worse, oldest first."""

    @property
    def is_waiting(self) -> bool:
        """Whether an event is kept in case that it goes on."""
        return bool(self._lines)

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        # The end of a line without end is dropped with its middle.
        self._rest = self._rest[: 4 * MAX_LINE_CHARS]

    def flush(self) -> None:
        """Hand over what is waiting to be continued."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        level, self._continues, self._traceback = self._level, None, "no"
        if level >= logging.WARNING:
            self.complaints.append(lines)
        self._emit(level, " | ".join(line.strip() for line in lines)[:MAX_EVENT_CHARS])

    def close(self) -> None:
        """The end of the output."""
        rest, self._rest = self._rest, b""
        if rest:
            self._line(rest)
        self.flush()

    def _line(self, raw: bytes) -> None:
        goes_on = raw.endswith(b"\r")
        text = _ESCAPES.sub("", raw[: 4 * MAX_LINE_CHARS].decode("utf-8", "replace").rstrip())
        text = text[:MAX_LINE_CHARS]
        match = _HEAD.fullmatch(text)
        if match is None:
            prefixed = _PREFIXED.fullmatch(text)
            text = prefixed["text"] if prefixed is not None else text
            if text.strip() and "\r" not in text and not _BAR.search(text):
                self._plain(text)
            return
        if match["head"] != self._continues:
            self.flush()
            self._level = logging.getLevelNamesMapping()[match["level"]]
        if not _ROUTE.match(match["text"]):
            self._add(match["text"])
        self._continues = match["head"] if goes_on else None
        if not goes_on:
            self.flush()

    def _plain(self, text: str) -> None:
        """A line without vLLM's head. A traceback's calls are indented; the exception is not, but the lines that
        its message goes on with are."""
        is_indented = text[:1].isspace()
        if self._lines and self._continues is None and (is_indented or self._traceback == "calls"):
            self._add(text)
            if not is_indented and not text.startswith(_TRACEBACK):
                self._traceback = "message"
            return
        if text in _BETWEEN_TRACEBACKS:
            return
        self.flush()
        self._level, text = _level_of(text)
        if text.startswith(_TRACEBACK):
            self._level, self._traceback = logging.ERROR, "calls"
        self._add(text)

    def _add(self, text: str) -> None:
        if text.strip() and len(self._lines) < _MAX_EVENT_LINES:
            self._lines.append(text)


def _level_of(text: str) -> tuple[int, str]:
    """The level of a line without vLLM's head, and its text without whatever head it has."""
    if (match := _SHORT_HEAD.fullmatch(text)) is not None:
        return logging.getLevelNamesMapping()[match["level"]], match["text"]
    if (match := _TORCH_HEAD.fullmatch(text)) is not None:
        return _LETTERS[match["letter"]], match["text"]
    if re.search(r"\berror: |\bfatal\b|Error: |Exception: |core dumped", text):
        return logging.ERROR, text
    return (logging.WARNING if "Warning: " in text else logging.INFO), text
