"""Writes a grammar as llguidance reads it."""

from __future__ import annotations

import json
from collections import deque

from backends.gbnf.cut import Call, Cut, Lexeme, Loop, cut
from backends.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq, Text
from backends.gbnf.shape import ROOT, Shape, shape_of
from backends.gbnf.syntax import parse


def lark_of(gbnf: str) -> str:
    """A Lark text that takes the same texts. Raises: BadGrammar."""
    shape = shape_of(parse(gbnf))
    return _Writer(shape).written(cut(shape))


class _Writer:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._rules: dict[str, str] = {ROOT: "start"}
        self._terminals: dict[str, str] = {}
        self._todo: deque[str] = deque()
        """Terminals that were named and not written yet."""
        self._lines: list[str] = []

    def written(self, rules: dict[str, Cut]) -> str:
        self._rules |= {name: f"r{i}" for i, name in enumerate(rules) if name != ROOT}
        for name, rule in rules.items():
            body = self._rule(rule)
            self._lines.append(f"{self._rules[name]}: {body}")
        while self._todo:
            name = self._todo.popleft()
            body = self._terminal(self._shape.rules[name])
            self._lines.append(f"{self._terminals[name]}: {body}")
        return "\n".join((*self._lines, ""))

    def _rule(self, part: Cut) -> str:
        if isinstance(part, Lexeme):
            return self._lexeme(part.node)
        if isinstance(part, Call):
            return self._rules[part.name]
        if isinstance(part, Loop):
            return _times(self._rule(part.part), part.least, part.most)
        return _row(list(map(self._rule, part.parts)), is_choice=part.is_choice)

    def _lexeme(self, node: Node) -> str:
        """A rule takes classes and literals as they are, and other lexemes by their names."""
        if isinstance(node, Text | Chars | Ref):
            return self._terminal(node)
        name = f"L{len(self._lines)}"
        self._lines.append("")
        place = len(self._lines) - 1
        self._lines[place] = f"{name}: {self._terminal(node)}"
        return name

    def _terminal(self, node: Node) -> str:
        if isinstance(node, Ref):
            if node.name not in self._terminals:
                self._terminals[node.name] = f"T{len(self._terminals)}"
                self._todo.append(node.name)
            return self._terminals[node.name]
        if isinstance(node, Text):
            return json.dumps(node.text, ensure_ascii=False)
        if isinstance(node, Chars):
            ranges = (f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in node.ranges)
            return f"/[{''.join(ranges)}]/"
        if isinstance(node, Repeat):
            return _times(self._terminal(node.part), node.least, node.most)
        assert isinstance(node, Seq | Alt)
        return _row(list(map(self._terminal, node.parts)), is_choice=isinstance(node, Alt))


def _row(parts: list[str], *, is_choice: bool) -> str:
    if not parts:
        return '""'
    return f"({(' | ' if is_choice else ' ').join(parts)})"


def _times(part: str, least: int, most: int | None) -> str:
    if most is None and least < 2:
        return f"({part}){'+' if least else '*'}"
    if (least, most) == (0, 1):
        return f"({part})?"
    return f"({part}){{{least},{'' if most is None else most}}}"
