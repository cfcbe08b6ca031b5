"""The events of a request gathered into whole choices, for an answer that is not streamed."""

from __future__ import annotations

from backends.types import ChoiceFinished, EventBatch, Finished, FinishReason, TextDelta, TokenLogprobs, Usage


class Choice:
    """One choice, complete once `finish_reason` is there."""

    __slots__ = ("finish_reason", "logprobs", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


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
            elif isinstance(event, ChoiceFinished):
                choice = self.choices[event.index]
                choice.finish_reason = event.finish_reason
                if event.logprobs:
                    choice.logprobs.extend(event.logprobs)
            elif isinstance(event, Finished):
                self.usage = event.usage
