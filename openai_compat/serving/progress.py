"""How far one attempt at a completion has come, by the events of its backend."""

from __future__ import annotations

from backends.types import (
    ChoiceFinished,
    EventBatch,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
)


class Progress:
    """`reason`: the finish reason of the choice that ended last."""

    __slots__ = ("finished", "num_batches", "num_tokens", "open_choices", "queue_ms", "reason")

    def __init__(self, num_choices: int) -> None:
        self.num_batches = 0
        self.num_tokens = 0
        self.queue_ms = 0.0
        """Waited in the backend."""
        self.finished: Finished | None = None
        self.reason = "stop"
        self.open_choices = set(range(num_choices))

    @property
    def is_whole(self) -> bool:
        """Every choice has ended, and so has the answer."""
        return self.finished is not None and not self.open_choices

    def note(self, batch: EventBatch) -> bool:
        """Take down a batch; whether it has content (text, reasoning or a tool call)."""
        has_content = False
        self.num_batches += 1
        for event in batch:
            if type(event) is TextDelta:
                has_content = True
                self.num_tokens += event.num_tokens
            elif type(event) is Started:
                self.queue_ms += event.queue_ms
            elif type(event) is ChoiceFinished:
                self.open_choices.discard(event.index)
                self.reason = event.finish_reason
            elif type(event) is Finished:
                self.finished = event
            elif type(event) is ReasoningDelta or type(event) is ToolCallDelta:
                has_content = True
                self.num_tokens += event.num_tokens
        return has_content
