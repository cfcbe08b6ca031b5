"""From a server's chunks to our events: one `Answer` per call, one `_Choice` per choice of the server.

The server's word counts where it has said something (finish reasons, usage); nothing is made up where it has not: an
answer that ends without a finish reason is an error, and a usage that was never told is counted and marked so.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Final

import msgspec

from backends.errors import UpstreamError
from backends.stop import StopMatcher
from backends.types import (
    ChatPrompt,
    ChoiceFinished,
    EventBatch,
    Finished,
    FinishReason,
    GenerationRequest,
    Prompt,
    ReasoningDelta,
    Started,
    TextDelta,
    TextPrompt,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
)
from backends.vllm.chunks import Choice, Chunk, Counts, Message, ToolCall
from backends.vllm.logprobs import read_logprobs
from backends.vllm.wire import Plan

_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    # TGI's own names.
    "eos_token": "stop",
    "stop_sequence": "stop",
}
CHARS_PER_TOKEN: Final = 4
"""For estimates of a prompt whose size the server did not tell."""


class Answer:
    """Reads the chunks of one call. `begun`: when the request was accepted, on the monotonic clock, in seconds."""

    def __init__(self, plan: Plan, request: GenerationRequest, begun: float) -> None:
        self.model = request.model
        self.is_chat = plan.is_chat
        self._plan = plan
        self._prompts = request.prompts
        self._begun = begun
        self._first = 0.0
        self._counts: Counts | None = None
        self._open = plan.num_prompts * (plan.n // plan.copies)
        per_prompt = plan.n // plan.copies
        self._choices = [
            _Choice(plan, tuple(range(j * plan.copies, (j + 1) * plan.copies)), j // per_prompt)
            for j in range(self._open)
        ]
        self._is_plain = plan.copies == 1 and not plan.stops and plan.num_top is None

    @property
    def started(self) -> bool:
        """Some chunk has been taken."""
        return self._first != 0.0

    @property
    def has_content(self) -> bool:
        """Some token has come."""
        return any(choice.num_tokens for choice in self._choices)

    @property
    def complete(self) -> bool:
        """Every choice has ended."""
        return self._open == 0

    @property
    def has_usage(self) -> bool:
        return self._counts is not None

    @property
    def overruns(self) -> bool:
        """The server goes on although every choice was cut here."""
        return self._open == 0 and any(choice.overruns for choice in self._choices)

    def take(self, chunk: Chunk, out: EventBatch) -> None:
        """Add the events of one chunk.

        Raises: UpstreamError for a choice that was not asked for or a finish reason that is none.
        """
        if not self._first:
            self._begin(chunk, out)
        if chunk.usage is not None:
            self._counts = chunk.usage
        for part in chunk.choices or ():
            if not 0 <= part.index < len(self._choices):
                raise UpstreamError(f"The server answered with a choice {part.index} that nobody asked for")
            choice = self._choices[part.index]
            if choice.ended:
                choice.overruns = choice.overruns or (choice.was_cut and not part.finish_reason)
                continue
            if chunk.usage is not None:
                choice.counts = chunk.usage
            message = part.delta or part.message
            if self._is_plain and not part.finish_reason:
                # Nearly every chunk of a stream.
                text = part.text if message is None else _only_text(message)
                if text:
                    choice.num_tokens += 1
                    choice.has_text = True
                    out.append(TextDelta(choice.first, text))
                    continue
            self._take(choice, part, message, out)

    def _begin(self, chunk: Chunk, out: EventBatch) -> None:
        self._first = time.monotonic()
        counts = chunk.usage
        out.append(Started(0.0, (counts.prompt_tokens or 0) if counts is not None else 0))
        for choice in self._choices if self._plan.echo else ():
            text = self._plan.echo[choice.prompt]
            if text:
                out.extend(TextDelta(index, text, 0) for index in choice.indexes)

    def _take(self, choice: _Choice, part: Choice, message: Message | None, out: EventBatch) -> None:
        choice.sampled(part, is_whole=part.message is not None)
        if message is not None:
            reasoning = message.reasoning or message.reasoning_content
            if reasoning:
                choice.reason(reasoning, out)
            text = message.content or message.refusal
            if text:
                choice.say(text, out)
            for call in message.tool_calls or ():
                choice.call(call, out)
        elif part.text:
            choice.say(part.text, out)
        if choice.was_cut:
            choice.overruns = self._plan.stops_unknown and not part.finish_reason
            choice.end("stop", None, out)
        elif part.finish_reason:  # some servers send "" until the end
            reason = _REASONS.get(part.finish_reason)
            if reason is None:
                raise UpstreamError(f"The server ended the answer with {part.finish_reason[:40]!r}")
            stop_reason = part.stop_reason if part.stop_reason is not None else part.matched_stop
            choice.end(reason, stop_reason if reason == "stop" else None, out)
        if choice.ended:
            self._open -= 1

    def finish(self) -> Finished:
        """The terminal event.

        Raises: UpstreamError if a choice has no end.
        """
        if self._open:
            raise UpstreamError("The server ended its answer before it was complete")
        now = time.monotonic()
        return Finished(
            self._usage(), 0.0, (self._first - self._begun) * 1000, max(0.0, (now - self._first) * 1000)
        )

    def _usage(self) -> Usage:
        copies = self._plan.copies
        counts = self._counts
        if counts is not None and counts.prompt_tokens is not None and self._plan.counts_here:
            completion = sum(choice.num_tokens for choice in self._choices)
            return Usage(counts.prompt_tokens, completion, counts.cached, is_estimated=True)
        if counts is not None and counts.prompt_tokens is not None and not self.overruns:
            return Usage(
                counts.prompt_tokens,
                (counts.completion_tokens or 0) * copies,
                counts.cached,
                counts.reasoning * copies,
            )
        last = [choice.counts for choice in self._choices]
        if all(counts is not None and counts.prompt_tokens is not None for counts in last):
            # Running counts: those of a choice are its own, those of the prompt the same for its choices.
            of_prompt = {c.prompt: c.counts.prompt_tokens or 0 for c in self._choices if c.counts is not None}
            completion = sum(counts.completion_tokens or 0 for counts in last if counts is not None)
            return Usage(sum(of_prompt.values()), completion * copies)
        completion = sum(choice.num_tokens for choice in self._choices) * copies
        return Usage(sum(map(_estimate, self._prompts)), completion, is_estimated=True)


class _Choice:
    """One choice of the server: its text, and which of our choices get it."""

    __slots__ = (
        "_calls",
        "_free",
        "_logprobs",
        "_matcher",
        "_num_top",
        "_skip",
        "_unsaid",
        "counts",
        "ended",
        "first",
        "has_text",
        "indexes",
        "num_tokens",
        "overruns",
        "prompt",
        "was_cut",
    )

    def __init__(self, plan: Plan, indexes: tuple[int, ...], prompt: int) -> None:
        self.indexes = indexes
        self.first = indexes[0]
        self.prompt = prompt
        self.num_tokens = 0
        self.counts: Counts | None = None
        self.ended = False
        self.was_cut = False
        self.has_text = False
        self.overruns = False
        """It was cut here, and the server went on with it."""
        self._matcher = StopMatcher(plan.stops) if plan.stops else None
        self._free = plan.min_tokens if plan.stops else 0
        self._skip = plan.echoed_chars[prompt] if plan.echoed_chars else 0
        self._num_top = plan.num_top
        self._unsaid = 0
        self._logprobs: list[TokenLogprobs] = []
        self._calls: list[_Call] = []

    def sampled(self, part: Choice, *, is_whole: bool) -> None:
        """Count the tokens of a chunk: by their ids or probabilities if it has them, else one for its content."""
        if self._num_top is not None and part.logprobs:
            entries = read_logprobs(part.logprobs, self._num_top)
            self._logprobs += entries
            num_tokens = len(entries)
        elif part.token_ids is not None:
            num_tokens = len(part.token_ids)
        else:
            message = part.delta or part.message
            has_content = part.text or (
                message
                and (message.content or message.reasoning or message.reasoning_content or message.tool_calls)
            )
            num_tokens = 1 if has_content else 0
            if is_whole and message and message.content:
                num_tokens = max(1, len(message.content) // CHARS_PER_TOKEN)
        self._unsaid += num_tokens
        self.num_tokens += num_tokens

    def say(self, text: str, out: EventBatch) -> None:
        if self._matcher is not None:
            text = self._cut(text)
        self._deliver(text, out)

    def reason(self, text: str, out: EventBatch) -> None:
        num_tokens, self._unsaid = self._unsaid, 0
        out.extend(ReasoningDelta(index, text, num_tokens) for index in self.indexes)

    def call(self, piece: ToolCall, out: EventBatch) -> None:
        """A piece of a tool call; see `_Call`."""
        call = self._call_of(piece)
        delta = call.take(piece)
        if delta is not None:
            num_tokens, self._unsaid = self._unsaid, 0
            arguments, id_, name = delta
            out.extend(
                ToolCallDelta(index, call.number, arguments, id_, name, num_tokens) for index in self.indexes
            )

    def end(self, reason: FinishReason, stop_reason: str | int | None, out: EventBatch) -> None:
        """A choice of nothing but calls ends with `tool_calls`: vLLM, as OpenAI does, says `stop` where the caller had
        named the tool, and clients that look at the reason then overlook the call.

        Raises: UpstreamError for a tool call that never got a name.
        """
        if any(not call.announced for call in self._calls):
            raise UpstreamError("The server sent a tool call without a name")
        matcher = self._matcher
        if matcher is not None:
            self._deliver(matcher.flush(), out)
            if matcher.matched is not None:
                reason, stop_reason = "stop", matcher.matched
        if reason == "stop" and stop_reason is None and self._calls and not self.has_text:
            reason = "tool_calls"
        logprobs = tuple(self._logprobs) or None
        out.extend(ChoiceFinished(index, reason, stop_reason, logprobs) for index in self.indexes)
        self.ended = True

    def _cut(self, text: str) -> str:
        assert self._matcher is not None
        free = ""
        if self._skip:
            free, text = text[: self._skip], text[self._skip :]
            self._skip -= len(free)
        elif self.num_tokens <= self._free:
            return text
        text = self._matcher.feed(text)
        self.was_cut = self._matcher.matched is not None
        return free + text

    def _deliver(self, text: str, out: EventBatch) -> None:
        if not text:
            return
        self.has_text = True
        num_tokens, self._unsaid = self._unsaid, 0
        logprobs: tuple[TokenLogprobs, ...] | None = None
        if self._logprobs:
            logprobs = tuple(self._logprobs)
            self._logprobs.clear()
        out.extend(TextDelta(index, text, num_tokens, logprobs) for index in self.indexes)

    def _call_of(self, piece: ToolCall) -> _Call:
        """The call a piece belongs to: a new one for an index or an id that was not seen, else the one with that
        index, else the last. Servers that give every call the index 0 give them ids."""
        calls = self._calls
        last = next((call for call in reversed(calls) if call.key == piece.index), None)
        if piece.index is None and calls:
            last = next((call for call in calls if piece.id and call.id == piece.id), calls[-1])
        has_name = piece.function is not None and bool(piece.function.name)
        if last is None or (piece.id and last.id and piece.id != last.id and has_name):
            last = _Call(len(calls), piece.index)
            calls.append(last)
        return last


class _Call:
    """One tool call: announced with id and name as soon as it has a name, then its arguments piece by piece. An id that
    the server leaves out is made up; ids and names that it repeats are dropped."""

    __slots__ = ("_held", "announced", "id", "key", "number")

    def __init__(self, number: int, key: int | None) -> None:
        self.number = number
        self.key = key
        self.id: str | None = None
        self.announced = False
        self._held = ""

    def take(self, piece: ToolCall) -> tuple[str, str | None, str | None] | None:
        """(arguments, id, name) of the next delta, if there is one."""
        self.id = self.id or piece.id or None
        function = piece.function
        arguments = function.arguments if function is not None else None
        text = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments or ""
        if self.announced:
            return (text, None, None) if text else None
        self._held += text
        if function is None or not function.name:
            return None
        self.announced = True
        self.id = self.id or f"call_{secrets.token_hex(12)}"
        return self._held, self.id, function.name


def _only_text(message: Message) -> str | None:
    """The text of a message that has nothing else."""
    if (
        message.tool_calls is not None
        or message.reasoning is not None
        or message.reasoning_content is not None
    ):
        return None
    return message.content


def _estimate(prompt: Prompt) -> int:
    if isinstance(prompt, ChatPrompt):
        return len(msgspec.json.encode([prompt.messages, prompt.tools])) // CHARS_PER_TOKEN
    if isinstance(prompt, TextPrompt):
        return max(1, len(prompt.text) // CHARS_PER_TOKEN)
    return len(prompt.token_ids)
