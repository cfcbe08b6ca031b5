"""Rules that can be met, and which of them are regular: a lexer can take a whole text of theirs at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from backends.gbnf.nodes import (
    Alt,
    BadGrammar,
    Chars,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Unsatisfiable,
    parts_of,
)

ROOT: Final = "root"
MAX_DEPTH: Final = 200
"""Nodes in nodes, through rules that do not come back to themselves."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`rules`: those that `root` needs, without what can never be met. `regular`: the names of those from which no way
    leads to a rule that comes back to itself."""

    rules: Rules
    regular: frozenset[str]

    def is_regular(self, node: Node) -> bool:
        """Whether no rule in it comes back to itself."""
        return all(name in self.regular for name in refs_of(node))


def shape_of(rules: Rules) -> Shape:
    """Raises: BadGrammar for a rule that is not there, a grammar that nothing satisfies, or one that is too deep."""
    if ROOT not in rules:
        raise BadGrammar(f"there is no rule called {ROOT}")
    for name, node in rules.items():
        for wanted in refs_of(node):
            if wanted not in rules:
                raise BadGrammar(f"the rule {name[:40]} asks for {wanted[:40]}, which is not there")
    pruned = _pruned(_reachable(rules))
    if ROOT not in pruned:
        raise Unsatisfiable("nothing satisfies it")
    used = _reachable(pruned)
    return Shape(used, _regular(used))


def refs_of(node: Node) -> list[str]:
    """The names of the rules in it, some more than once."""
    found: list[str] = []
    todo = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, Ref):
            found.append(one.name)
        todo += parts_of(one)
    return found


def _reachable(rules: Rules) -> Rules:
    seen = {ROOT: rules[ROOT]}
    todo = [ROOT]
    while todo:
        for name in refs_of(seen[todo.pop()]):
            if name not in seen:
                seen[name] = rules[name]
                todo.append(name)
    return seen


def _pruned(rules: Rules) -> Rules:
    """Without alternatives that lead to no end."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, node in rules.items():
        for wanted in set(refs_of(node)):
            users[wanted].append(name)
    ends: set[str] = set()
    todo = deque(rules)
    while todo:
        name = todo.popleft()
        if name not in ends and _without_dead_ends(rules[name], ends) is not None:
            ends.add(name)
            todo += users[name]
    left = {name: _without_dead_ends(rules[name], ends) for name in ends}
    return {name: node for name, node in left.items() if node is not None}


def _without_dead_ends(node: Node, ends: set[str]) -> Node | None:
    """None: no text satisfies it."""
    if isinstance(node, Ref):
        return node if node.name in ends else None
    if isinstance(node, Chars):
        return node if node.ranges else None
    if isinstance(node, Repeat):
        part = _without_dead_ends(node.part, ends)
        if part is None or node.most == 0:
            return Seq(()) if node.least == 0 else None
        return node if part is node.part else Repeat(part, node.least, node.most)
    if isinstance(node, Text):
        return node
    parts = [_without_dead_ends(part, ends) for part in node.parts]
    left = tuple(part for part in parts if part is not None)
    if isinstance(node, Seq):
        if len(left) < len(parts):
            return None
        return node if left == node.parts else Seq(left)
    if not left:
        return None
    if left == node.parts:
        return node
    return left[0] if len(left) == 1 else Alt(left)


def _regular(rules: Rules) -> frozenset[str]:
    """Raises: BadGrammar where they are too deep."""
    missing = {name: set(refs_of(node)) for name, node in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, wanted in missing.items():
        for one in wanted:
            users[one].append(name)
    depths: dict[str, int] = {}
    ready = deque(name for name, wanted in missing.items() if not wanted)
    while ready:
        name = ready.popleft()
        depths[name] = _depth(rules[name], depths)
        if depths[name] > MAX_DEPTH:
            raise BadGrammar(f"the rule {name[:40]} goes deeper than {MAX_DEPTH}")
        for user in users[name]:
            missing[user].discard(name)
            if not missing[user]:
                ready.append(user)
    return frozenset(depths)


def _depth(node: Node, depths: dict[str, int]) -> int:
    if isinstance(node, Ref):
        return 1 + depths[node.name]
    return 1 + max((_depth(part, depths) for part in parts_of(node)), default=0)
