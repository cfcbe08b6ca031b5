"""What rules are made of. Nodes are compared by identity: two that look alike stand at two places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Ranges = tuple[tuple[int, int], ...]
"""Code points from and to, both included; in order, and none touches the next."""

MAX_CODE_POINT: Final = 0x10FFFF
SURROGATES: Final = (0xD800, 0xDFFF)


class BadGrammar(Exception):
    """Why a grammar cannot be used, in words for the one who wrote it."""


class Unsatisfiable(BadGrammar):
    """No text satisfies it."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """These characters in a row; at least one."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """One after the other; of nothing: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """One of these."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """So many times. `most`: None for no limit."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """Another rule."""

    name: str


Node = Text | Chars | Seq | Alt | Repeat | Ref
Rules = dict[str, Node]


def parts_of(node: Node) -> tuple[Node, ...]:
    """The nodes right below."""
    if isinstance(node, Seq | Alt):
        return node.parts
    return (node.part,) if isinstance(node, Repeat) else ()


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """In order and joined, without the surrogates: no text holds them."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        for first, last in _without_surrogates(low, high):
            if out and first <= out[-1][1] + 1:
                out[-1] = (out[-1][0], max(out[-1][1], last))
            else:
                out.append((first, last))
    return tuple(out)


def _without_surrogates(low: int, high: int) -> list[tuple[int, int]]:
    below, above = (low, min(high, SURROGATES[0] - 1)), (max(low, SURROGATES[1] + 1), high)
    return [(first, last) for first, last in (below, above) if first <= last]


def all_but(ranges: Ranges) -> Ranges:
    """Every other code point."""
    out: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if start < low:
            out.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        out.append((start, MAX_CODE_POINT))
    return merged(out)


def overlap(one: Ranges, other: Ranges) -> bool:
    """Whether a character is in both."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] < other[j][0]:
            i += 1
        elif other[j][1] < one[i][0]:
            j += 1
        else:
            return True
    return False
