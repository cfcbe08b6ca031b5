"""One continuation of a prompt, token by token: which events each makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle
from zlib import crc32

from backends.fake import tokens
from backends.fake.intent import Intent
from backends.stop import StopMatcher
from backends.types import (
    ChoiceFinished,
    EventBatch,
    FinishReason,
    GenerationRequest,
    Prompt,
    ReasoningDelta,
    TextDelta,
    TokenLogprobs,
    ToolCallDelta,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a sequence comes to. `length`: its tokens, thoughts and calls included; `said` is repeated as often as that
    needs."""

    intent: Intent
    said: list[str]
    length: int
    reason: FinishReason


class Sequence:
    """One sequence: which token comes next, and which events that makes."""

    def __init__(self, index: int, answer: Answer, prompt: Prompt, request: GenerationRequest) -> None:
        self.index = index
        self.sampled = 0
        self.finished = False
        self._answer = answer
        self.thought = 0
        self._beside = _beside_text(index, answer.intent, request.request_id)
        said = answer.said
        again = [f" {said[0].lstrip()}", *said[1:]] if said else []
        self._tokens = chain(said, cycle(again))
        self._sampling = request.sampling
        self._matcher = StopMatcher(request.sampling.stop)
        self._echo = tokens.text_of(prompt) if request.echo else ""
        self._unsaid = 0
        self._logprobs: list[TokenLogprobs] = []

    def step(self, out: EventBatch) -> None:
        """Sample one token, or end."""
        if self._echo:
            out.append(TextDelta(self.index, self._echo, 0))
            self._echo = ""
        if self.sampled == self._answer.length:
            self._end(out, self._answer.reason, None)
            return
        self.sampled += 1
        if (event := next(self._beside, None)) is not None:
            self.thought += type(event) is ReasoningDelta
            out.append(event)
        else:
            self._sample_text(out, next(self._tokens))
        if not self.finished and self.sampled == self._answer.length and self._answer.reason == "length":
            self._end(out, "length", None)

    def _sample_text(self, out: EventBatch, token: str) -> None:
        self._unsaid += 1
        if self._sampling.logprobs is not None:
            self._logprobs.append(tokens.logprobs(token, self._sampling.logprobs))
        if self.sampled <= self._sampling.min_tokens:
            self._say(out, token)
        elif (number := tokens.token_id(token)) in self._sampling.stop_token_ids:
            self._end(out, "stop", number)
            return
        else:
            self._say(out, self._matcher.feed(token))
        if self._matcher.matched is not None:
            self._end(out, "stop", self._matcher.matched)

    def _say(self, out: EventBatch, text: str) -> None:
        if text:
            out.append(TextDelta(self.index, text, self._unsaid, self._taken()))
            self._unsaid = 0

    def _end(self, out: EventBatch, reason: FinishReason, stop_reason: str | int | None) -> None:
        self._say(out, self._matcher.flush())
        if self._matcher.matched is not None:
            reason, stop_reason = "stop", self._matcher.matched
        out.append(ChoiceFinished(self.index, reason, stop_reason, self._taken() or None))
        self.finished = True

    def _taken(self) -> tuple[TokenLogprobs, ...] | None:
        if self._sampling.logprobs is None:
            return None
        taken, self._logprobs = tuple(self._logprobs), []
        return taken


def _beside_text(index: int, intent: Intent, request_id: str) -> Iterator[ReasoningDelta | ToolCallDelta]:
    """What comes before the text, one event per token."""
    for token in intent.thoughts:
        yield ReasoningDelta(index, token)
    for number, call in enumerate(intent.calls):
        call_id = f"call_{crc32(f'{request_id} {index} {number}'.encode()):08x}"
        yield ToolCallDelta(index, number, "", call_id, call.name)
        for piece in call.arguments:
            yield ToolCallDelta(index, number, piece)
