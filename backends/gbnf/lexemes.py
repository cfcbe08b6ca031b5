"""What a lexeme can be: every text of a regular node, as an automaton over characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from backends.gbnf.nodes import (
    MAX_CODE_POINT,
    Alt,
    Chars,
    Node,
    Ranges,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    overlap,
)

MAX_STEPS: Final = 20_000
"""From one position to the next, in all. A list of a thousand words has some ten thousand."""
MANY: Final = 3
"""Counts above it are taken for "or more": more texts than there are, and so never too few."""

START: Final = 0


class TooLarge(Exception):
    """It has more steps than are looked at."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """Positions are numbers, `START` before the first character. `chars`: what is read on the way to a position;
    `after`: the positions that may come next; `ends`: where a text may be over."""

    chars: list[Ranges]
    after: list[list[int]]
    ends: frozenset[int]

    @property
    def first(self) -> list[Ranges]:
        """The characters with which a text may begin."""
        return [self.chars[position] for position in self.after[START]]


def automaton_of(node: Node, rules: Rules) -> Automaton:
    """Of a node without a rule that comes back to itself. Raises: TooLarge."""
    builder = _Builder(rules)
    part = builder.build(node)
    builder.after[START] = sorted(part.first)
    ends = part.last | {START} if part.is_empty else part.last
    return Automaton(builder.chars, [sorted(after) for after in builder.after], frozenset(ends))


@dataclass(frozen=True, slots=True)
class _Part:
    """Where it begins and ends. `is_empty`: it may be the empty text."""

    first: frozenset[int]
    last: frozenset[int]
    is_empty: bool


_NOTHING: Final = _Part(frozenset(), frozenset(), is_empty=True)


class _Builder:
    """Glushkov's construction: a position per character of the rule."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._num_steps = 0
        self.chars: list[Ranges] = [()]
        self.after: list[list[int] | set[int]] = [[]]

    def build(self, node: Node) -> _Part:
        if isinstance(node, Ref):
            return self.build(self._rules[node.name])
        if isinstance(node, Chars):
            return self._position(node.ranges)
        if isinstance(node, Text):
            return self._in_a_row([self._position(((ord(char), ord(char)),)) for char in node.text])
        if isinstance(node, Seq):
            return self._in_a_row([self.build(part) for part in node.parts])
        if isinstance(node, Alt):
            parts = [self.build(part) for part in node.parts]
            first = frozenset().union(*(part.first for part in parts))
            last = frozenset().union(*(part.last for part in parts))
            return _Part(first, last, is_empty=any(part.is_empty for part in parts))
        return self._repeated(node)

    def _position(self, ranges: Ranges) -> _Part:
        self._count(1)
        number = len(self.chars)
        self.chars.append(ranges)
        self.after.append(set())
        return _Part(frozenset((number,)), frozenset((number,)), is_empty=False)

    def _in_a_row(self, parts: list[_Part]) -> _Part:
        whole = _NOTHING
        for part in parts:
            self._lead(whole.last, part.first)
            whole = _Part(
                whole.first | part.first if whole.is_empty else whole.first,
                whole.last | part.last if part.is_empty else part.last,
                is_empty=whole.is_empty and part.is_empty,
            )
        return whole

    def _repeated(self, node: Repeat) -> _Part:
        least = min(node.least, MANY)
        is_many = node.most is None or node.most > MANY
        num_more = 0 if is_many else (node.most or 0) - least
        parts = [self.build(node.part) for _ in range(least)]
        if is_many and not parts:
            parts = [_with_nothing(self.build(node.part))]
        parts += [_with_nothing(self.build(node.part)) for _ in range(num_more)]
        if is_many:
            self._lead(parts[-1].last, parts[-1].first)
        return self._in_a_row(parts)

    def _lead(self, last: frozenset[int], first: frozenset[int]) -> None:
        self._count(len(last) * len(first))
        for position in last:
            after = self.after[position]
            assert isinstance(after, set)
            after |= first

    def _count(self, num_steps: int) -> None:
        self._num_steps += num_steps
        if self._num_steps > MAX_STEPS:
            raise TooLarge


def _with_nothing(part: _Part) -> _Part:
    return _Part(part.first, part.last, is_empty=True)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two lexemes read beside each other. `shares`: a text that is not empty is one of both; `goes_on`: where the
    second goes on after a text that is one of the first, with these characters."""

    shares: bool
    goes_on: list[Ranges]


MAX_PAIRS: Final = 200_000
"""Of steps that are compared. What is not decided by then is taken to be in the way."""
_UNKNOWN: Final = Meeting(shares=True, goes_on=[((0, MAX_CODE_POINT),)])


def meeting_of(one: Automaton, other: Automaton) -> Meeting:
    """Takes as many steps as there are pairs of positions that one text leads to."""
    seen = {(START, START)}
    todo = [(START, START)]
    shares = False
    goes_on: set[int] = set()
    num_pairs = 0
    while todo:
        here, there = todo.pop()
        if here != START and here in one.ends:
            shares = shares or there in other.ends
            goes_on.update(other.after[there])
        num_pairs += len(one.after[here]) * len(other.after[there])
        if num_pairs > MAX_PAIRS:
            return _UNKNOWN
        for a in one.after[here]:
            for b in other.after[there]:
                if (a, b) not in seen and overlap(one.chars[a], other.chars[b]):
                    seen.add((a, b))
                    todo.append((a, b))
    return Meeting(shares, [other.chars[position] for position in sorted(goes_on)])
