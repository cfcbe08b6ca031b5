"""The events of a request gathered into whole choices, for an answer that is not streamed."""

from __future__ import annotations

from backends.types import (
    ChoiceFinished,
    EventBatch,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
)


class Call:
    """One tool call; its arguments are whole once its choice is."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, first: ToolCallDelta) -> None:
        self.id = first.id
        self.name = first.name
        self.arguments: list[str] = []


class Choice:
    """One choice, complete once `finish_reason` is there."""

    __slots__ = ("calls", "finish_reason", "logprobs", "pieces", "reasoning_pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.reasoning_pieces: list[str] = []
        self.calls: list[Call] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoning_pieces)

    def add_call(self, event: ToolCallDelta) -> None:
        if event.call_index == len(self.calls):
            self.calls.append(Call(event))
        self.calls[event.call_index].arguments.append(event.arguments)


class Collected:
    """All choices of a request, by index."""

    def __init__(self, num_choices: int) -> None:
        self.choices = [Choice() for _ in range(num_choices)]
        self.usage: Usage | None = None

    def add(self, batch: EventBatch) -> None:
        """Take in a batch, in order."""
        for event in batch:
            if isinstance(event, TextDelta):
                choice = self.choices[event.index]
                choice.pieces.append(event.text)
                if event.logprobs:
                    choice.logprobs.extend(event.logprobs)
            elif isinstance(event, ReasoningDelta):
                self.choices[event.index].reasoning_pieces.append(event.text)
            elif isinstance(event, ToolCallDelta):
                self.choices[event.index].add_call(event)
            elif isinstance(event, ChoiceFinished):
                choice = self.choices[event.index]
                choice.finish_reason = event.finish_reason
                if event.logprobs:
                    choice.logprobs.extend(event.logprobs)
            elif isinstance(event, Finished):
                self.usage = event.usage
