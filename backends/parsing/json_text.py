"""JSON that is still being written: where a value ends, as far as that can be told from its brackets and strings.

Nothing here judges what stands inside a value: a model's arguments are passed on as it wrote them.
"""

from __future__ import annotations

import re
from typing import Final

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_+.\-]+")
_TELLING: Final = re.compile(r'[{}\[\]"\\]')
_CLOSES: Final = {"}": "{", "]": "["}


class Unfinished(Exception):
    """What is there so far is right, and goes on."""


class Broken(Exception):
    """This is not JSON of the form that was expected."""


class Brackets:
    """The end of an object or a list, looked for piece by piece."""

    __slots__ = ("_escaped", "_in_string", "_open")

    def __init__(self) -> None:
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, at: int = 0) -> int | None:
        """The index after the value's end; None while it goes on. A bracket that closes another one than it should
        counts as that one."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = _TELLING.search(text, at)
            if match is None:
                return None
            char, at = match[0], match.end()
            if self._in_string:
                if char == '"':
                    self._in_string = False
                elif char == "\\":
                    self._escaped = True
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._open.append(char)
            elif char in _CLOSES and self._open:
                self._open.pop()
                if not self._open:
                    return at
        return None


def skip_blanks(text: str, at: int) -> int:
    """The index of the next character that is none. Raises: Unfinished."""
    match = _BLANKS.match(text, at)
    assert match is not None
    if match.end() == len(text):
        raise Unfinished
    return match.end()


def expect(text: str, at: int, chars: str) -> int:
    """The index after the next character that is no blank, which must be one of `chars`.

    Raises: Unfinished, Broken.
    """
    at = skip_blanks(text, at)
    if text[at] not in chars:
        raise Broken
    return at + 1


def end_of_value(text: str, at: int) -> int:
    """The index after the value that starts at `at`. Raises: Unfinished, Broken."""
    char = text[at]
    if char == '"':
        match = _STRING.match(text, at)
        if match is None:
            raise Unfinished
        return match.end()
    if char in "{[":
        end = Brackets().feed(text, at)
        if end is None:
            raise Unfinished
        return end
    match = _PLAIN.match(text, at)
    if match is None:
        raise Broken
    if match.end() == len(text):
        raise Unfinished
    return match.end()
