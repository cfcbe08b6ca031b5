"""Reads a GBNF text.

As llama.cpp reads it, and beyond that as its other readers do: names may hold `_`, and a line may begin with the `|`
that goes on with the rule above. Not read: tokens by number or name (`<[7]>`, `!<think>`), which only one model has.
"""

from __future__ import annotations

import re
from typing import Final

from backends.gbnf.nodes import (
    MAX_CODE_POINT,
    SURROGATES,
    Alt,
    BadGrammar,
    Chars,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    all_but,
    merged,
)

MAX_NESTING: Final = 64
"""Parentheses in parentheses, and signs of repetition behind each other."""
MAX_COUNT: Final = 10_000
"""In braces. llama.cpp takes more than 2,000 for no limit."""

_BLANKS: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN: Final = re.compile(r'[^"\\]+')
_COUNT: Final = re.compile(r"[0-9]+")
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n"} | {char: char for char in '\\"[]-'}
_SIGNS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ANY: Final = all_but(())


def parse(text: str) -> Rules:
    """The rules by their names; of two with one name the last. Raises: BadGrammar."""
    return _Reader(text).rules()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> Rules:
        rules: Rules = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            name = self._name("the name of a rule")
            self._skip()
            self._expect("::=")
            self._skip(lines=True)
            rules[name] = self._choice(nested=False)
            if self._at < len(self._text) and self._peek() not in "\r\n":
                raise self._wrong("the end of the rule")
            self._skip(lines=True)
        return rules

    # -- rules ------------------------------------------------------------------------------------------------

    def _choice(self, *, nested: bool) -> Node:
        parts = [self._sequence(nested=nested)]
        while self._bar():
            self._skip(lines=True)
            parts.append(self._sequence(nested=nested))
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _bar(self) -> bool:
        end = self._at
        self._skip(lines=True)
        if self._peek() == "|":
            self._at += 1
            return True
        self._at = end
        return False

    def _sequence(self, *, nested: bool) -> Node:
        parts: list[Node] = []
        while (part := self._item()) is not None:
            self._skip(lines=nested)
            parts.append(self._repeated(part, nested=nested))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _item(self) -> Node | None:
        """The next one; None where the sequence ends."""
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._class()
        if char == "(":
            return self._group()
        if char == ".":
            self._at += 1
            return Chars(_ANY)
        if _NAME.match(char):
            return Ref(self._name("a name"))
        if char in _SIGNS or char == "{":
            raise self._wrong("something to repeat")
        if char in ("<", "!"):
            raise self._error(f"tokens, written as {char}…>, cannot be enforced here")
        return None

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"parentheses nest deeper than {MAX_NESTING}")
        self._skip(lines=True)
        inner = self._choice(nested=True)
        self._expect(")")
        self._depth -= 1
        return inner

    def _repeated(self, part: Node, *, nested: bool) -> Node:
        for _ in range(MAX_NESTING):
            char = self._peek()
            if char in _SIGNS:
                self._at += 1
                least, most = _SIGNS[char]
            elif char == "{":
                least, most = self._counts(nested=nested)
            else:
                return part
            if not (isinstance(part, Seq) and not part.parts):
                part = Repeat(part, least, most)
            self._skip(lines=nested)
        raise self._error(f"more than {MAX_NESTING} repetitions of one another")

    def _counts(self, *, nested: bool) -> tuple[int, int | None]:
        self._at += 1
        self._skip(lines=nested)
        least = most = self._count()
        self._skip(lines=nested)
        if self._peek() == ",":
            self._at += 1
            self._skip(lines=nested)
            most = -1 if self._peek() == "}" else self._count()
            self._skip(lines=nested)
        self._expect("}")
        if most < 0:
            return least, None
        if most < least:
            raise self._error(f"a repetition of at least {least} and at most {most}")
        return least, most

    def _count(self) -> int:
        match = _COUNT.match(self._text, self._at)
        if match is None:
            raise self._wrong("a number")
        if len(match[0]) > 9 or int(match[0]) > MAX_COUNT:
            raise self._error(f"more than {MAX_COUNT} repetitions")
        self._at = match.end()
        return int(match[0])

    # -- characters -------------------------------------------------------------------------------------------

    def _literal(self) -> Node:
        self._at += 1
        pieces: list[str] = []
        while (char := self._peek()) != '"':
            if match := _PLAIN.match(self._text, self._at):
                pieces.append(match[0])
                self._at = match.end()
            elif char:
                pieces.append(chr(self._char()))
            else:
                raise self._wrong('the closing "')
        self._at += 1
        text = "".join(pieces)
        return Text(text) if text else Seq(())

    def _class(self) -> Node:
        self._at += 1
        is_negated = self._peek() == "^"
        self._at += is_negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            low = high = self._char()
            if self._peek() == "-" and self._peek(1) not in ("]", ""):
                self._at += 1
                high = self._char()
                if high < low:
                    raise self._error(f"the range from U+{low:04X} to U+{high:04X} runs backwards")
            ranges.append((low, high))
        if not ranges:
            raise self._error("a class of no characters")
        self._at += 1
        found = merged(ranges)
        return Chars(all_but(found) if is_negated else found)

    def _char(self) -> int:
        char = self._peek()
        if not char:
            raise self._wrong("a character")
        if char != "\\":
            self._at += 1
            return ord(char)
        escape = self._peek(1)
        if escape in _ESCAPES:
            self._at += 2
            return ord(_ESCAPES[escape])
        size = _HEX.get(escape, 0)
        digits = self._text[self._at + 2 : self._at + 2 + size]
        if not size or not re.fullmatch(rf"[0-9A-Fa-f]{{{size}}}", digits):
            raise self._error(f"there is no escape {self._text[self._at : self._at + 2 + size]!r}")
        code = int(digits, 16)
        if code > MAX_CODE_POINT or SURROGATES[0] <= code <= SURROGATES[1]:
            raise self._error(f"there is no character U+{code:04X}")
        self._at += 2 + size
        return code

    # -- the text ---------------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _skip(self, *, lines: bool = False) -> None:
        match = (_BLANKS_AND_LINES if lines else _BLANKS).match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _name(self, what: str) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._wrong(what)
        self._at = match.end()
        return match[0]

    def _expect(self, sign: str) -> None:
        if not self._text.startswith(sign, self._at):
            raise self._wrong(sign)
        self._at += len(sign)

    def _wrong(self, expected: str) -> BadGrammar:
        found = repr(self._peek()) if self._peek() else "its end"
        return self._error(f"{expected} should stand here, not {found}")

    def _error(self, what: str) -> BadGrammar:
        line = self._text.count("\n", 0, self._at) + 1
        return BadGrammar(f"line {line}: {what}")
