"""Both in a row: thoughts first, then words and calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from backends.parsing.calls import CallReader
from backends.parsing.formats import CallFormat
from backends.parsing.pieces import Piece, Text
from backends.parsing.reasoning import ThoughtMarkers, ThoughtSplitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What to look for in an answer. None: not at all."""

    thoughts: ThoughtMarkers | None = None
    begins_inside: bool = False
    """The prompt has opened a thought already."""
    calls: CallFormat | None = None
    names: Collection[str] = ()
    """The tools on offer."""


class AnswerParser:
    """Watches the text of one choice."""

    def __init__(self, grammar: Grammar) -> None:
        self._thoughts = (
            ThoughtSplitter(grammar.thoughts, begins_inside=grammar.begins_inside)
            if grammar.thoughts is not None
            else None
        )
        self._calls = CallReader(grammar.calls, grammar.names) if grammar.calls is not None else None

    @property
    def is_thinking(self) -> bool:
        """What comes next belongs to a thought."""
        return self._thoughts is not None and self._thoughts.is_thinking

    @property
    def is_undecided(self) -> bool:
        """Not enough has come to tell whether the answer begins with a thought."""
        return self._thoughts is not None and self._thoughts.is_undecided

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._calls.num_calls if self._calls is not None else 0

    @property
    def num_whole_calls(self) -> int:
        return self._calls.num_whole if self._calls is not None else 0

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        if self._thoughts is None or self._thoughts.is_over:
            return self._words(text)
        return self._without_thoughts(self._thoughts.feed(text))

    def finish(self) -> list[Piece]:
        """The rest, now that nothing follows."""
        pieces = self._without_thoughts(self._thoughts.finish()) if self._thoughts is not None else []
        return pieces + (self._calls.finish() if self._calls is not None else [])

    def _without_thoughts(self, pieces: list[Piece]) -> list[Piece]:
        out: list[Piece] = []
        for piece in pieces:
            out += self._words(piece.text) if isinstance(piece, Text) else [piece]
        return out

    def _words(self, text: str) -> list[Piece]:
        if self._calls is not None:
            return self._calls.feed(text)
        return [Text(text)] if text else []


def parse(text: str, grammar: Grammar) -> list[Piece]:
    """The pieces of a whole answer."""
    parser = AnswerParser(grammar)
    return [*parser.feed(text), *parser.finish()]
