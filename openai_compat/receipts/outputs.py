"""What an answer said, as digests: enough to see whether another one says the same.

Of a choice its text, what it thought, and its calls without their ids, which are drawn anew each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from backends.types import (
    ChoiceFinished,
    EventBatch,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

Call = tuple[str, str]
"""Name and arguments."""


def sha256_of(text: str) -> str:
    """Of its UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def sha256_of_calls(calls: Iterable[Call]) -> str:
    """Of `[["name", "arguments"], …]` as compact JSON."""
    return hashlib.sha256(msgspec.json.encode([list(call) for call in calls])).hexdigest()


class _Choice:
    __slots__ = ("arguments", "names", "num_chars", "reason", "text", "thoughts")

    def __init__(self) -> None:
        self.text = hashlib.sha256()
        self.num_chars = 0
        self.thoughts: Any = None
        self.names: list[str] = []
        self.arguments: list[list[str]] = []
        self.reason: FinishReason | None = None


class Outputs:
    """Of one attempt, taken in as its events come."""

    def __init__(self, num_choices: int) -> None:
        self._choices = [_Choice() for _ in range(num_choices)]

    def add(self, batch: EventBatch) -> None:
        for event in batch:
            if type(event) is TextDelta:
                choice = self._choices[event.index]
                choice.text.update(event.text.encode("utf-8", "replace"))
                choice.num_chars += len(event.text)
            elif type(event) is ReasoningDelta:
                choice = self._choices[event.index]
                choice.thoughts = choice.thoughts or hashlib.sha256()
                choice.thoughts.update(event.text.encode("utf-8", "replace"))
            elif type(event) is ToolCallDelta:
                choice = self._choices[event.index]
                if event.call_index == len(choice.names):
                    choice.names.append(event.name or "")
                    choice.arguments.append([])
                choice.arguments[event.call_index].append(event.arguments)
            elif type(event) is ChoiceFinished:
                self._choices[event.index].reason = event.finish_reason

    def entries(self) -> list[dict[str, Any]]:
        """One per choice, in order."""
        return [_entry(index, choice) for index, choice in enumerate(self._choices)]


def _entry(index: int, choice: _Choice) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "index": index,
        "finish_reason": choice.reason,
        "text_sha256": choice.text.hexdigest(),
        "text_chars": choice.num_chars,
    }
    if choice.thoughts is not None:
        entry["reasoning_sha256"] = choice.thoughts.hexdigest()
    if choice.names:
        calls = zip(choice.names, map("".join, choice.arguments), strict=True)
        entry["tool_calls_sha256"] = sha256_of_calls(calls)
    return entry


def vector_entries(vectors: Sequence[bytes]) -> list[dict[str, Any]]:
    """The same of an embedding's vectors: little-endian float32."""
    return [
        {
            "index": index,
            "vector_sha256": hashlib.sha256(vector).hexdigest(),
            "dimensions": len(vector) // 4,
        }
        for index, vector in enumerate(vectors)
    ]
