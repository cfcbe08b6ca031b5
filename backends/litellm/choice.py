"""One choice of an answer, from the provider's deltas to our events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

from backends.errors import UpstreamError
from backends.stop import StopMatcher
from backends.types import (
    ChoiceFinished,
    Event,
    EventBatch,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
    ToolCallDelta,
)

_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}


class Choice:
    """Collects what is known of one choice. `stops`: the strings that are cut here."""

    def __init__(self, index: int, *, stops: tuple[str, ...] = (), echo: str = "") -> None:
        self.index = index
        self.said = ""
        """Everything that was delivered, echo aside: what an estimate of its tokens counts."""
        self._matcher = StopMatcher(stops)
        self._stops = bool(stops)
        self._echo = echo
        self._held: list[TokenLogprobs] = []
        self._calls = ToolCalls(index)

    @property
    def stopped(self) -> bool:
        """A stop string matched: whatever comes after is not part of the answer."""
        return self._matcher.matched is not None

    def add(self, delta: Any, logprobs: Any = None, *, num_tokens: int = 1) -> EventBatch:
        """The events of one delta, or of a whole message."""
        out: EventBatch = []
        if self._echo:
            out.append(TextDelta(self.index, self._echo, 0))
            self._echo = ""
        thought = _reasoning_of(delta)
        if thought:
            self.said += thought
            out.append(ReasoningDelta(self.index, thought, num_tokens))
            num_tokens = 0
        text = getattr(delta, "content", None) or getattr(delta, "refusal", None)
        entries = _logprobs_of(logprobs)
        if isinstance(text, str) and text:
            self._say(out, self._matcher.feed(text), entries, num_tokens)
        elif entries:
            self._held += entries
        calls = getattr(delta, "tool_calls", None)
        if calls:
            out += self._calls.add(calls)
        return out

    def finish(self, reason: str | None, *, provider: str) -> EventBatch:
        """What is still held back, and the end. Raises: UpstreamError for an end that is none."""
        out: EventBatch = []
        if self._echo:
            out.append(TextDelta(self.index, self._echo, 0))
        if self._stops:
            self._say(out, self._matcher.flush(), [], 1)
        if self.stopped:
            out.append(ChoiceFinished(self.index, "stop", self._matcher.matched, tuple(self._held) or None))
            return out
        if reason is None or reason == "error":
            raise UpstreamError(f"The provider {provider!r} broke off its answer")
        out += self._calls.finish(provider)
        kind = _REASONS.get(reason, "stop")
        out.append(ChoiceFinished(self.index, kind, None, tuple(self._held) or None))
        return out

    def _say(self, out: EventBatch, text: str, entries: list[TokenLogprobs], num_tokens: int) -> None:
        self._held += entries
        if text:
            self.said += text
            out.append(TextDelta(self.index, text, num_tokens, tuple(self._held) or None))
            self._held = []


class ToolCalls:
    """The tool calls of one choice: an id and a name in the first piece of each and in no other, whatever the provider
    leaves out or repeats."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._calls: list[_ToolCall] = []
        self._by_key: dict[int, _ToolCall] = {}

    def add(self, pieces: Sequence[Any]) -> list[Event]:
        out: list[Event] = []
        for piece in pieces:
            function = getattr(piece, "function", None)
            name = getattr(function, "name", None) or None
            arguments = _as_text(getattr(function, "arguments", None))
            call = self._call_of(getattr(piece, "index", None), getattr(piece, "id", None) or None, name)
            call.given += arguments
            if call.name is None:
                call.name = name
                if name is None:
                    continue  # its arguments wait for the name
                call.sent = True
                out.append(ToolCallDelta(self._index, call.number, call.given, id=call.id, name=name))
            elif arguments:
                out.append(ToolCallDelta(self._index, call.number, arguments))
        return out

    def finish(self, provider: str) -> list[Event]:
        """A call without arguments gets an empty object: clients parse what they get.

        Raises: UpstreamError for a call that never got a name.
        """
        out: list[Event] = []
        for call in self._calls:
            if not call.sent:
                raise UpstreamError(f"The provider {provider!r} called a tool without a name")
            if not call.given:
                out.append(ToolCallDelta(self._index, call.number, "{}", num_tokens=0))
        return out

    def _call_of(self, key: int | None, call_id: str | None, name: str | None) -> _ToolCall:
        """The call that a piece belongs to. A new key begins one, and so does another id or, without either, a name."""
        if key is None:
            begins = not self._calls or call_id is not None or name is not None
            last = self._calls[-1] if self._calls else None
            if not begins or (last is not None and call_id is not None and last.id == call_id):
                assert last is not None
                return last
            return self._begin(len(self._calls), call_id)
        known = self._by_key.get(key)
        if known is None or (call_id is not None and known.has_own_id and known.id != call_id):
            return self._begin(key, call_id)
        if call_id is not None and not known.has_own_id and not known.sent:
            known.id, known.has_own_id = call_id, True
        return known

    def _begin(self, key: int, call_id: str | None) -> _ToolCall:
        call = self._by_key[key] = _ToolCall(len(self._calls), call_id)
        self._calls.append(call)
        return call


class _ToolCall:
    __slots__ = ("given", "has_own_id", "id", "name", "number", "sent")

    def __init__(self, number: int, call_id: str | None) -> None:
        self.number = number
        self.id = call_id or f"call_{secrets.token_hex(12)}"
        self.has_own_id = call_id is not None
        self.name: str | None = None
        self.given = ""
        self.sent = False


def _reasoning_of(delta: Any) -> str:
    for name in ("reasoning_content", "reasoning"):
        value = getattr(delta, name, None)
        if isinstance(value, str) and value:
            return value
    return ""


def _as_text(arguments: object) -> str:
    """Some providers give arguments as an object."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _logprobs_of(logprobs: Any) -> list[TokenLogprobs]:
    content = getattr(logprobs, "content", None)
    if not content:
        return []
    return [
        TokenLogprobs(_token(entry), tuple(_token(one) for one in getattr(entry, "top_logprobs", None) or ()))
        for entry in content
    ]


def _token(entry: Any) -> TokenLogprob:
    raw = getattr(entry, "bytes", None)
    text = bytes(raw) if raw else str(entry.token).encode("utf-8", "replace")
    return TokenLogprob(text, min(0.0, float(entry.logprob)))
