"""Thoughts apart from the answer.

    undecided ──open──> inside ──close──> after      a span stands at the beginning of an answer, blanks before it
        └──anything else──────────────────┘

A marker that comes later is text: whoever asks about `<think>` gets an answer that holds it. Blanks next to a marker
are part of the markup. A span that is never closed is a thought to its end.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from backends.parsing.markers import find_marker
from backends.parsing.pieces import Piece, Text, Thought


class ThoughtMarkers(NamedTuple):
    """What stands around a thought."""

    open: str
    close: str


KNOWN_MARKERS = (
    ThoughtMarkers("<think>", "</think>"),
    ThoughtMarkers("[THINK]", "[/THINK]"),
    ThoughtMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarkers("<seed:think>", "</seed:think>"),
    ThoughtMarkers("◁think▷", "◁/think▷"),
)


def markers_of(template: str) -> ThoughtMarkers | None:
    """Those that a chat template writes or looks for; None where it knows of no thoughts."""
    for markers in KNOWN_MARKERS:
        if markers.open in template or markers.close in template:
            return markers
    return None


class ThoughtSplitter:
    """Watches one answer. `begins_inside`: the prompt has opened the span already."""

    def __init__(self, markers: ThoughtMarkers, *, begins_inside: bool = False) -> None:
        self._markers = markers
        self._state: Literal["undecided", "inside", "after"] = "inside" if begins_inside else "undecided"
        self._held = ""
        self._is_fresh = True
        """Nothing but blanks since the state began: they are markup."""

    @property
    def is_thinking(self) -> bool:
        """A span is open."""
        return self._state == "inside"

    @property
    def is_undecided(self) -> bool:
        """Not enough has come to tell whether one opens."""
        return self._state == "undecided"

    @property
    def is_over(self) -> bool:
        """From here on every character is text, and may go past this object."""
        return self._state == "after" and not self._is_fresh

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        text = self._held + text
        self._held = ""
        pieces: list[Piece] = []
        if self._state == "undecided":
            text = self._decide(text)
        if self._state == "inside":
            text = self._think(text, pieces)
        if self._state == "after":
            self._answer(text, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        if self._state == "inside":
            held = held.rstrip()
            return [Thought(held)] if held else []
        return [Text(held)] if held else []

    def _decide(self, text: str) -> str:
        start = text.lstrip()
        if start.startswith(self._markers.open):
            self._state = "inside"
            return start[len(self._markers.open) :]
        if self._markers.open.startswith(start):
            self._held = text
            return ""
        # No thought after all: the blanks were the answer's.
        self._state, self._is_fresh = "after", False
        return text

    def _think(self, text: str, pieces: list[Piece]) -> str:
        if self._is_fresh:
            text = text.lstrip()
        end, found = find_marker(text, (self._markers.close,))
        thought = text[:end]
        # Blanks wait: they are markup if the end follows.
        ready = thought.rstrip()
        if ready:
            pieces.append(Thought(ready))
            self._is_fresh = False
        if found is None:
            self._held = text[len(ready) :]
            return ""
        self._state, self._is_fresh = "after", True
        return text[end + len(found) :]

    def _answer(self, text: str, pieces: list[Piece]) -> None:
        if self._is_fresh:
            text = text.lstrip()
        if text:
            self._is_fresh = False
            pieces.append(Text(text))
