"""The engine's texts as events: thoughts, words and tool calls of each choice, and what they end with.

    engine ─ TextDelta ─> ChoiceReading ─> ReasoningDelta | TextDelta | ToolCallDelta

On the event loop's side, so that the engine's thread knows of none of it.
"""

from __future__ import annotations

import secrets
import string
from typing import Final

import msgspec

from backends.parsing.answer import AnswerParser, Grammar
from backends.parsing.pieces import CallArguments, CallBegin, Piece, Text, Thought
from backends.types import (
    ChoiceFinished,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenLogprobs,
    ToolCallDelta,
)

_LETTERS: Final = string.ascii_letters + string.digits


class Reading:
    """Reads the events of one job, in order."""

    def __init__(self, grammar: Grammar, num_choices: int) -> None:
        self._choices = [ChoiceReading(index, grammar) for index in range(num_choices)]

    def read(self, events: list[Event]) -> list[Event]:
        """What they come to; nothing while all of it is held back."""
        out: list[Event] = []
        for event in events:
            if isinstance(event, TextDelta):
                self._choices[event.index].take(event, out)
            elif isinstance(event, ChoiceFinished):
                self._choices[event.index].finish(event, out)
            elif isinstance(event, Finished):
                thought = sum(choice.reasoning_tokens for choice in self._choices)
                usage = msgspec.structs.replace(event.usage, reasoning_tokens=thought)
                out.append(msgspec.structs.replace(event, usage=usage))
            else:
                out.append(event)
        return out


def call_id(grammar: Grammar) -> str:
    """A new id, in the form that the model's family has."""
    if grammar.calls is not None and grammar.calls.has_short_ids:
        return "".join(secrets.choice(_LETTERS) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"


class ChoiceReading:
    """One choice: which events its text makes."""

    __slots__ = (
        "_call",
        "_doubtful",
        "_entries",
        "_grammar",
        "_index",
        "_parser",
        "_unsaid",
        "reasoning_tokens",
    )

    def __init__(self, index: int, grammar: Grammar) -> None:
        self._index = index
        self._grammar = grammar
        self._parser = AnswerParser(grammar)
        self._call = -1
        self._unsaid = 0
        self._doubtful = 0
        """Tokens of what may still become a thought."""
        self._entries: list[TokenLogprobs] = []
        self.reasoning_tokens = 0
        """Those of thoughts and of the marks around them."""

    def take(self, delta: TextDelta, out: list[Event]) -> None:
        """Add the events of one piece of text."""
        self._unsaid += delta.num_tokens
        self._entries += delta.logprobs or ()
        was_thinking = self._parser.is_thinking
        pieces = self._parser.feed(delta.text)
        if self._parser.is_undecided:
            self._doubtful += delta.num_tokens
        else:
            if was_thinking or self._parser.is_thinking or any(isinstance(p, Thought) for p in pieces):
                self.reasoning_tokens += self._doubtful + delta.num_tokens
            self._doubtful = 0
        self._tell(pieces, out)

    def finish(self, event: ChoiceFinished, out: list[Event]) -> None:
        """Add what was held back, and the end. A choice with calls ends with `tool_calls` if all of them are whole: the
        arguments of others are no JSON, and nobody shall run them."""
        self._tell(self._parser.finish(), out)
        reason, num_calls = event.finish_reason, self._parser.num_calls
        if reason == "stop" and num_calls and self._parser.num_whole_calls == num_calls:
            reason = "tool_calls"
        # Entries of thoughts and calls have no words to go with.
        entries = (*self._entries, *(event.logprobs or ()))
        out.append(ChoiceFinished(self._index, reason, event.stop_reason, entries or None))

    def _tell(self, pieces: list[Piece], out: list[Event]) -> None:
        for piece in pieces:
            if isinstance(piece, Text):
                entries = tuple(self._entries) or None
                self._entries.clear()
                out.append(TextDelta(self._index, piece.text, self._said(), entries))
            elif isinstance(piece, Thought):
                out.append(ReasoningDelta(self._index, piece.text, self._said()))
            elif isinstance(piece, CallBegin):
                self._call += 1
                id_ = call_id(self._grammar)
                out.append(ToolCallDelta(self._index, self._call, "", id_, piece.name, self._said()))
            elif isinstance(piece, CallArguments):
                out.append(ToolCallDelta(self._index, self._call, piece.text, num_tokens=self._said()))

    def _said(self) -> int:
        num_tokens, self._unsaid = self._unsaid, 0
        return num_tokens


def told_again(events: list[Event], copies: int, grammar: Grammar | None) -> list[Event]:
    """The events of one computed choice per prompt, told as `copies` equal choices. Each call has an id of its own."""
    told: list[Event] = []
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta | ChoiceFinished):
            for i in range(copies):
                copy = msgspec.structs.replace(event, index=event.index * copies + i)
                if i and isinstance(copy, ToolCallDelta) and copy.id is not None and grammar is not None:
                    copy = msgspec.structs.replace(copy, id=call_id(grammar))
                told.append(copy)
        elif isinstance(event, Finished):
            usage = msgspec.structs.replace(
                event.usage,
                completion_tokens=event.usage.completion_tokens * copies,
                reasoning_tokens=event.usage.reasoning_tokens * copies,
            )
            told.append(msgspec.structs.replace(event, usage=usage))
        else:
            told.append(event)
    return told
