"""Tool calls apart from words, while both are still being written.

    words ──marker──> head ──name known──> arguments ──brackets closed──> rest ──> words | next head
      ^                 │
      └── no call ──────┘ (with its marker: nothing is lost)

From the moment the name and the first brace of the arguments are there it is a call, whatever comes then; before that,
what turns out to be none is text. A call whose brackets never close has no `CallEnd`. Blanks between calls and around
them are markup, but text stays as it was written.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from backends.parsing.call_text import Head, read_named, read_object, read_rest
from backends.parsing.formats import CallFormat
from backends.parsing.json_text import Brackets, Broken, Unfinished, skip_blanks
from backends.parsing.markers import find_marker
from backends.parsing.pieces import CallArguments, CallBegin, CallEnd, Piece, Text

MAX_HEAD_CHARS: Final = 32_768
"""Of a call whose arguments are not read piece by piece (they come before the name, or are a string): a longer one is
text. It is looked at again with every token, so there must be an end."""

_SEPARATORS: Final = ";,"


class CallReader:
    """Watches one answer. `names`: the tools on offer, which alone may be called without a marker."""

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self._form = form
        self._names = frozenset(names)
        self._state: Literal["words", "head", "arguments", "rest"] = "words"
        self._held = ""
        self._head = ""
        """What was read of the call in hand before its arguments, in case it is none."""
        self._brackets = Brackets()
        self._in_list = False
        self._is_marked = False
        self._needs_brace = False
        self._may_be_bare = form.takes_bare
        self._is_start = True
        """No word has come yet: blanks wait, and a call may stand here without a marker."""
        self.num_calls = 0
        self.num_whole = 0

    @property
    def is_calling(self) -> bool:
        """A call has begun, and its arguments are not whole."""
        return self._state == "arguments"

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        if (
            self._state == "words"
            and not self._held
            and not self._is_start
            and self._form.open[0] not in text
        ):
            return [Text(text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back, now that nothing follows."""
        pieces: list[Piece] = []
        held, self._held = self._held, ""
        if self._state == "words":
            # Blanks after a call are markup, alone they are what the model wrote.
            if held and not (self.num_calls and self._is_start and not held.strip()):
                pieces.append(Text(held))
        elif self._state == "head":
            pieces.append(Text(self._head + held))
        elif self._state == "rest" and not self._is_markup(held):
            pieces.append(Text(held))
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Take what can be taken of what is held. False: more text is needed."""
        if self._state == "words":
            return self._read_words(pieces)
        if self._state == "head":
            return self._read_head(pieces)
        if self._state == "arguments":
            return self._read_arguments(pieces)
        return self._read_rest(pieces)

    # -- words ------------------------------------------------------------------------------------------------

    def _read_words(self, pieces: list[Piece]) -> bool:
        text = self._held
        if self._is_start:
            start = text.lstrip()
            if not start:
                return False
            if self._may_be_bare and start[0] == "{":
                self._begin_head(len(text) - len(start), "")
                return True
        end, marker = find_marker(text, (self._form.open,))
        words = text[:end]
        if self._is_start and not words.strip():
            # Blanks alone wait for what follows; before a call they are dropped.
            if marker is None:
                return False
            words = ""
        if words:
            pieces.append(Text(words))
            self._is_start = False
        if marker is None:
            self._held = text[end:]
            return False
        self._begin_head(end, marker)
        return True

    def _begin_head(self, start: int, marker: str) -> None:
        self._state = "head"
        self._is_marked = bool(marker)
        self._in_list = False
        # Blanks that stood before it are text again if it is no call.
        self._head = self._held[:start] * self._is_start + marker
        self._held = self._held[start + len(marker) :]

    # -- one call ---------------------------------------------------------------------------------------------

    def _read_head(self, pieces: list[Piece]) -> bool:
        try:
            head = self._find_head()
        except Unfinished:
            if len(self._held) <= MAX_HEAD_CHARS:
                return False
            head = None
        except Broken:
            head = None
        if head is None or head.end > MAX_HEAD_CHARS or not (self._is_marked or head.name in self._names):
            self._give_up(pieces)
            return True
        pieces.append(CallBegin(head.name))
        self.num_calls += 1
        self._held = self._held[head.end :]
        self._head = ""
        self._needs_brace = not (head.is_closed or head.is_named)
        self._brackets = Brackets()
        self._state = "arguments"
        if head.arguments is not None:
            pieces += [CallArguments(head.arguments), CallEnd()]
            self._end_call()
        return True

    def _find_head(self) -> Head:
        at = skip_blanks(self._held, 0)
        if self._form.takes_lists and not self._in_list:
            if self._held[at] == "[":
                # Kept with the head, so that it comes back if this is no call.
                self._in_list = True
                self._head += self._held[: at + 1]
                self._held = self._held[at + 1 :]
                return self._find_head()
            if self._held[at] != "{":
                return read_named(self._held, at)
        return read_object(self._held, at)

    def _give_up(self, pieces: list[Piece]) -> None:
        """It was no call: its marker is text, and what follows may still hold one."""
        if self._head:
            pieces.append(Text(self._head))
        self._head = ""
        self._state, self._is_start = "words", False

    def _read_arguments(self, pieces: list[Piece]) -> bool:
        text = self._held
        end = self._brackets.feed(text)
        pieces.append(CallArguments(text if end is None else text[:end]))
        self._held = "" if end is None else text[end:]
        if end is None:
            return False
        pieces.append(CallEnd())
        self._end_call()
        return True

    def _end_call(self) -> None:
        self.num_whole += 1
        self._state = "rest"

    # -- between calls ----------------------------------------------------------------------------------------

    def _read_rest(self, pieces: list[Piece]) -> bool:
        """What ends a call, and whether another one follows at once."""
        del pieces
        if self._needs_brace and not self._read_brace():
            return False
        text, form = self._held, self._form
        at = len(text) - len(text.lstrip())
        rest = text[at:]
        if form.close is not None:
            if rest.startswith(form.close):
                return self._turn_to_words(at + len(form.close))
            if form.close.startswith(rest):
                return False
        if self._in_list and rest.startswith("]"):
            return self._turn_to_words(at + 1)
        after = rest.lstrip(_SEPARATORS + " \t\r\n") if self._may_go_on else rest
        if not after:
            return False
        if after.startswith("{") and self._may_go_on:
            self._state = "head"
            self._head = text[: len(text) - len(after)]
            self._held = after
            return True
        return self._turn_to_words(0)

    def _read_brace(self) -> bool:
        """Past the brace that closes the call's own object, which models forget now and then. False: wait for it."""
        try:
            end = read_rest(self._held, 0)
        except Unfinished:
            if len(self._held) <= MAX_HEAD_CHARS:
                return False
            end = 0
        except Broken:
            end = 0
        self._held = self._held[end if end <= MAX_HEAD_CHARS else 0 :]
        self._needs_brace = False
        return bool(self._held)

    @property
    def _may_go_on(self) -> bool:
        """Another call may follow without a marker of its own."""
        return self._in_list or not self._form.takes_lists

    def _turn_to_words(self, at: int) -> bool:
        self._held = self._held[at:]
        self._state, self._is_start, self._may_be_bare = "words", True, False
        return True

    def _is_markup(self, rest: str) -> bool:
        """What is left after a call is nothing but its end, or the beginning of that."""
        rest = rest.strip("}]" + _SEPARATORS + " \t\r\n")
        return not rest or (self._form.close is not None and self._form.close.startswith(rest))
