"""What a model's text is made of."""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """Words to the reader; never empty."""

    text: str


class Thought(NamedTuple):
    """What the model thinks before it answers; never empty."""

    text: str


class CallBegin(NamedTuple):
    """A tool call begins. Its arguments follow."""

    name: str


class CallArguments(NamedTuple):
    """The next piece of the arguments, as the model wrote them; never empty."""

    text: str


class CallEnd(NamedTuple):
    """The arguments are whole: an object whose brackets are closed."""


Piece = Text | Thought | CallBegin | CallArguments | CallEnd


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same with neighbours of one kind put together."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, Text) and isinstance(last, Text):
            whole[-1] = Text(last.text + piece.text)
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            whole[-1] = Thought(last.text + piece.text)
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            whole[-1] = CallArguments(last.text + piece.text)
        else:
            whole.append(piece)
    return whole
