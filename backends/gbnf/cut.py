"""Where a lexer may take a text at once, and where it must not.

llguidance's lexer is greedy: of the lexemes that may stand at a place it goes on as long as one of them does, and what
ended earlier is forgotten. GBNF knows no lexemes: `[a-z]+ "e"` takes "tree". So a regular node is one lexeme only where
no text is lost by it: wherever a lexeme that may stand there is over and something may follow it, no lexeme that may
stand there goes on with the same character. Where one does, it is taken apart, if need be to single characters, none of
which goes on in another.

Lexemes may stand at one place if the same text leads to both. Followed are the lexemes that may come next, not the
rules that they come from: that is more than there is, and takes apart too much rather than too little.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from backends.gbnf.lexemes import START, Automaton, Meeting, TooLarge, automaton_of, meeting_of
from backends.gbnf.nodes import (
    Alt,
    Chars,
    Node,
    Ranges,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    merged,
    overlap,
)
from backends.gbnf.shape import ROOT, Shape

Key = Any
"""What two lexemes share if they take the same texts."""


@dataclass(frozen=True, slots=True, eq=False)
class Lexeme:
    """A node that is taken at once, at one place of the grammar."""

    node: Node
    key: Key


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One after the other, or with `is_choice` one of them."""

    parts: tuple[Cut, ...]
    is_choice: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """So many times."""

    part: Cut
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A rule that is no lexeme."""

    name: str


Cut = Lexeme | Row | Loop | Call


def cut(shape: Shape) -> dict[str, Cut]:
    """The rules that are no lexemes, `root` among them in any case."""
    if ROOT in shape.regular:
        return {ROOT: Lexeme(shape.rules[ROOT], ROOT)}
    cutter = _Cutter(shape)
    while True:
        rules = cutter.cut()
        apart = _Places(rules, cutter).apart()
        if not apart:
            return rules
        cutter.opened |= apart


class _Cutter:
    """Cuts rules as far as it was found to be needed. `opened`: the keys of what must not be a lexeme."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._rules: Rules = {name: self._grouped(node) for name, node in shape.rules.items()}
        self.opened: set[Key] = set()
        self._automata: dict[Key, Automaton | None] = {}
        self._meetings: dict[tuple[Key, Key], Meeting] = {}

    def cut(self) -> dict[str, Cut]:
        rules: dict[str, Cut] = {}
        todo = deque((ROOT,))
        while todo:
            name = todo.popleft()
            if name not in rules:
                rules[name] = self._cut(self._rules[name], todo)
        return rules

    def automaton(self, lexeme: Lexeme) -> Automaton | None:
        """None where it is too large to be looked at."""
        key = lexeme.key
        if key not in self._automata:
            try:
                self._automata[key] = automaton_of(lexeme.node, self._shape.rules)
            except TooLarge:
                self._automata[key] = None
        return self._automata[key]

    def meeting(self, one: Lexeme, other: Lexeme) -> Meeting:
        key = (one.key, other.key)
        if key not in self._meetings:
            first, second = self.automaton(one), self.automaton(other)
            assert first is not None
            assert second is not None
            self._meetings[key] = meeting_of(first, second)
        return self._meetings[key]

    def _cut(self, node: Node, todo: deque[str]) -> Cut:
        key = _key(node)
        if key not in self.opened and self._shape.is_regular(node):
            return Lexeme(node, key)
        if isinstance(node, Ref):
            todo.append(node.name)
            return Call(node.name)
        if isinstance(node, Text):
            return Row(tuple(self._cut(Text(char), todo) for char in node.text))
        if isinstance(node, Repeat):
            return Loop(self._cut(node.part, todo), node.least, node.most)
        assert isinstance(node, Seq | Alt)
        return Row(tuple(self._cut(part, todo) for part in node.parts), isinstance(node, Alt))

    def _grouped(self, node: Node) -> Node:
        """With neighbours of a row that are regular as one node."""
        if self._shape.is_regular(node) or isinstance(node, Ref):
            return node
        if isinstance(node, Repeat):
            return Repeat(self._grouped(node.part), node.least, node.most)
        assert isinstance(node, Seq | Alt)
        if isinstance(node, Alt):
            return Alt(tuple(map(self._grouped, node.parts)))
        parts: list[Node] = []
        run: list[Node] = []
        for part in node.parts:
            if self._shape.is_regular(part):
                run.append(part)
                continue
            parts += _joined(run)
            run = []
            parts.append(self._grouped(part))
        return Seq((*parts, *_joined(run)))


def _joined(run: list[Node]) -> list[Node]:
    return run if len(run) < 2 else [Seq(tuple(run))]


def _key(node: Node) -> Key:
    if isinstance(node, Ref):
        return node.name
    if isinstance(node, Text):
        return (node.text,)
    return node.ranges if isinstance(node, Chars) else node


@dataclass(slots=True)
class _Reach:
    """What a rule may begin with, whether it may be empty, and what may follow it."""

    first: set[Lexeme] = field(default_factory=set)
    is_empty: bool = False
    after: set[Lexeme] = field(default_factory=set)


class _Places:
    """Which lexemes may stand at one place, and which are in each other's way."""

    def __init__(self, rules: dict[str, Cut], cutter: _Cutter) -> None:
        self._rules = rules
        self._cutter = cutter
        self._lexemes = [one for rule in rules.values() for one in _lexemes_of(rule)]
        self._after: dict[Lexeme, set[Lexeme]] = {lexeme: set() for lexeme in self._lexemes}
        self._reach = {name: _Reach() for name in rules}

    def apart(self) -> set[Key]:
        """The keys of what has to be taken apart."""
        large = {one.key for one in self._lexemes if self._cutter.automaton(one) is None}
        if large:
            return large
        self._find_first()
        self._find_after()
        begins = {one: merged([r for ranges in self._first_of(one) for r in ranges]) for one in self._after}
        follows: dict[Lexeme, Ranges] = {
            one: merged([r for other in after for r in begins[other]]) for one, after in self._after.items()
        }
        found: set[Key] = set()
        seen: set[tuple[Lexeme, Lexeme]] = set()
        first = self._reach[ROOT].first
        todo = list(product(first, first))
        while todo:
            pair = todo.pop()
            if pair in seen or not overlap(begins[pair[0]], begins[pair[1]]):
                continue
            seen.add(pair)
            one, other = pair
            meeting = self._cutter.meeting(one, other)
            if any(overlap(ranges, follows[one]) for ranges in meeting.goes_on):
                found.add(other.key)
            if meeting.shares:
                todo += product(self._after[one], self._after[other])
        return found

    def _first_of(self, lexeme: Lexeme) -> list[Ranges]:
        automaton = self._cutter.automaton(lexeme)
        assert automaton is not None
        return automaton.first

    def _is_empty(self, lexeme: Lexeme) -> bool:
        automaton = self._cutter.automaton(lexeme)
        return automaton is not None and START in automaton.ends

    def _find_first(self) -> None:
        is_new = True
        while is_new:
            is_new = False
            for name, rule in self._rules.items():
                reach = self._reach[name]
                first, is_empty = self._begin(rule)
                if len(first) > len(reach.first) or is_empty != reach.is_empty:
                    reach.first, reach.is_empty, is_new = first, is_empty, True

    def _begin(self, part: Cut) -> tuple[set[Lexeme], bool]:
        """What it may begin with, and whether it may be empty, as far as is known."""
        if isinstance(part, Lexeme):
            return {part}, self._is_empty(part)
        if isinstance(part, Call):
            reach = self._reach[part.name]
            return set(reach.first), reach.is_empty
        if isinstance(part, Loop):
            first, is_empty = self._begin(part.part)
            return first, is_empty or part.least == 0
        first = set()
        for one in part.parts:
            more, is_empty = self._begin(one)
            first |= more
            if not part.is_choice and not is_empty:
                return first, False
        if part.is_choice:
            return first, any(self._begin(one)[1] for one in part.parts)
        return first, True

    def _find_after(self) -> None:
        size = -1
        while size != (size := self._size()):
            for name, rule in self._rules.items():
                self._follow(rule, self._reach[name].after)

    def _size(self) -> int:
        return sum(map(len, self._after.values())) + sum(len(reach.after) for reach in self._reach.values())

    def _follow(self, part: Cut, after: set[Lexeme]) -> None:
        """Note that `after` may come behind it."""
        if isinstance(part, Lexeme):
            self._after[part] |= after
        elif isinstance(part, Call):
            self._reach[part.name].after |= after
        elif isinstance(part, Loop):
            again = part.most is None or part.most > 1
            self._follow(part.part, after | self._begin(part.part)[0] if again else after)
        elif part.is_choice:
            for one in part.parts:
                self._follow(one, after)
        else:
            for one in reversed(part.parts):
                self._follow(one, after)
                first, is_empty = self._begin(one)
                after = after | first if is_empty else first


def _lexemes_of(part: Cut) -> list[Lexeme]:
    if isinstance(part, Lexeme):
        return [part]
    if isinstance(part, Row):
        return [one for each in part.parts for one in _lexemes_of(each)]
    return _lexemes_of(part.part) if isinstance(part, Loop) else []
