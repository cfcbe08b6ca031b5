"""What a completion must look like, as a stream and whole. The first thing that is wrong is raised as a Violation.

kind of violation   what was seen
changed-id          a chunk with another `id` than the first
changed-head        another `object`, `created` or `model`
wrong-order         text before the role or after the finish reason, a role twice, a choice after the usage, usage
                    before the end, anything after `[DONE]`
wrong-chunk         `choices` or a delta of another form
missing-usage       usage was asked for and is not there, or its numbers do not add up
no-finish           a choice without a finish reason, or with two
no-done             the stream ended without `[DONE]`
too-many-tokens     more tokens than `max_tokens`
wrong-body          a whole answer of another form
broken-frame        see `sse`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtests.sse import Payload, Violation

TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
"""Where a chat delta may hold text. `reasoning` repeats `reasoning_content`: one piece, whichever are there."""


class ErrorInStream(Exception):
    """The server sent an error frame: a failure, but not of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def usage_of(body: Mapping[str, Any], *, max_tokens: int | None, has_completion: bool = True) -> Usage:
    """The checked `usage` of an answer or of a last chunk. Raises: Violation."""
    raw = body.get("usage")
    if not isinstance(raw, dict):
        raise Violation("missing-usage", f"usage is {raw!r}")
    names = ["prompt_tokens", "total_tokens", *(["completion_tokens"] if has_completion else [])]
    for name in names:
        if type(raw.get(name)) is not int or raw[name] < 0:
            raise Violation("missing-usage", f"usage.{name} is {raw.get(name)!r}")
    made = raw["completion_tokens"] if has_completion else 0
    if raw["total_tokens"] != raw["prompt_tokens"] + made:
        raise Violation("missing-usage", f"usage does not add up: {raw}")
    if max_tokens is not None and made > max_tokens:
        raise Violation("too-many-tokens", f"{made} tokens were made, max_tokens is {max_tokens}")
    details = raw.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(raw["prompt_tokens"], made, cached if type(cached) is int else 0)


@dataclass(slots=True)
class _Choice:
    has_role: bool = False
    finish: str | None = None


@dataclass(slots=True)
class StreamCheck:
    """Follows one stream. `is_chat` is False for the legacy completion, whose chunks have text and no roles."""

    is_chat: bool
    wants_usage: bool = True
    max_tokens: int | None = None
    usage: Usage | None = None
    is_done: bool = False
    said: list[str] = field(default_factory=list)
    """The text of all choices, without thoughts."""
    _head: dict[str, Any] | None = None
    _choices: dict[int, _Choice] = field(default_factory=dict)

    def take(self, payload: Payload) -> bool:
        """Whether this frame brought a piece of what the model says: text, a thought or a part of a tool call.

        Raises: Violation; ErrorInStream.
        """
        if self.is_done:
            raise Violation("wrong-order", f"a frame after [DONE]: {payload!r:.200}")
        if isinstance(payload, str):
            self._finish()
            self.is_done = True
            return False
        if "error" in payload:
            error = payload["error"] if isinstance(payload["error"], dict) else {}
            raise ErrorInStream(str(error.get("code") or error.get("type")), str(error.get("message")))
        self._check_head(payload)
        choices = payload.get("choices")
        if not isinstance(choices, list):
            raise Violation("wrong-chunk", f"choices is {choices!r:.200}")
        if self.usage is not None:
            raise Violation("wrong-order", "a chunk after the usage")
        if not choices:
            self._take_usage(payload)
            return False
        brought = [self._take_choice(choice) for choice in choices]
        return any(brought)

    def end(self) -> None:
        """The stream has ended. Raises: Violation."""
        if not self.is_done:
            raise Violation("no-done", "the stream ended without [DONE]")

    def _check_head(self, chunk: dict[str, Any]) -> None:
        head = {name: chunk.get(name) for name in ("id", "object", "created", "model")}
        if self._head is None:
            expected = "chat.completion.chunk" if self.is_chat else "text_completion"
            if head["object"] != expected or not head["id"]:
                raise Violation("wrong-chunk", f"id is {head['id']!r}, object is {head['object']!r}")
            self._head = head
        elif head["id"] != self._head["id"]:
            raise Violation("changed-id", f"id was {self._head['id']!r} and is {head['id']!r}")
        elif head != self._head:
            raise Violation("changed-head", f"it was {self._head} and is {head}")

    def _take_usage(self, chunk: dict[str, Any]) -> None:
        if not self._choices or any(choice.finish is None for choice in self._choices.values()):
            raise Violation("wrong-order", "usage before every choice has its finish reason")
        self.usage = usage_of(chunk, max_tokens=self.max_tokens)

    def _take_choice(self, raw: object) -> bool:
        if not isinstance(raw, dict) or type(raw.get("index")) is not int:
            raise Violation("wrong-chunk", f"a choice is {raw!r:.200}")
        choice = self._choices.setdefault(raw["index"], _Choice())
        if choice.finish is not None:
            raise Violation("wrong-order", f"choice {raw['index']} goes on after its finish reason")
        brought = (
            self._take_delta(raw, choice) if self.is_chat else self._take_text(raw.get("text"), is_said=True)
        )
        finish = raw.get("finish_reason")
        if finish is not None:
            if not isinstance(finish, str) or not finish:
                raise Violation("wrong-chunk", f"finish_reason is {finish!r}")
            choice.finish = finish
        return brought

    def _take_delta(self, raw: dict[str, Any], choice: _Choice) -> bool:
        delta = raw.get("delta")
        if not isinstance(delta, dict):
            raise Violation("wrong-chunk", f"delta is {delta!r:.200}")
        if "role" in delta:
            if choice.has_role:
                raise Violation("wrong-order", f"a second role for choice {raw['index']}")
            choice.has_role = True
        brought = [
            self._take_text(delta[name], is_said=name == "content")
            for name in TEXTS
            if delta.get(name) is not None
        ]
        brought.append(bool(delta.get("tool_calls")))
        if not choice.has_role:
            raise Violation("wrong-order", f"choice {raw['index']} begins without a role")
        return any(brought)

    def _take_text(self, text: object, *, is_said: bool) -> bool:
        if not isinstance(text, str):
            raise Violation("wrong-chunk", f"text is {text!r:.200}")
        if text and is_said:
            self.said.append(text)
        return bool(text)

    def _finish(self) -> None:
        if not self._choices or any(choice.finish is None for choice in self._choices.values()):
            raise Violation("no-finish", "[DONE] before every choice has its finish reason")
        if self.wants_usage and self.usage is None:
            raise Violation("missing-usage", "[DONE] and no usage, which was asked for")


def check_answer(body: object, *, is_chat: bool, max_tokens: int | None) -> tuple[Usage, str]:
    """Usage and text of a whole answer's first choice. Raises: Violation."""
    expected = "chat.completion" if is_chat else "text_completion"
    if not isinstance(body, dict) or body.get("object") != expected or not body.get("id"):
        raise Violation("wrong-body", f"no {expected}: {body!r:.200}")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise Violation("wrong-body", f"choices is {choices!r:.200}")
    text: object = ""
    for choice in reversed(choices):
        if not isinstance(choice, dict) or not choice.get("finish_reason"):
            raise Violation("no-finish", f"a choice is {choice!r:.200}")
        holder = choice.get("message") if is_chat else choice
        if not isinstance(holder, dict):
            raise Violation("wrong-body", f"a choice is {choice!r:.200}")
        text = holder.get("content" if is_chat else "text")
        if not isinstance(text, str) and not (
            is_chat and (holder.get("tool_calls") or holder.get("refusal"))
        ):
            raise Violation("wrong-body", f"the text is {text!r}")
    return usage_of(body, max_tokens=max_tokens), text if isinstance(text, str) else ""


def check_embeddings(body: object, *, count: int) -> Usage:
    """Raises: Violation unless there is one vector of finite size per input, in order."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(data, list) or len(data) != count:
        raise Violation("wrong-body", f"{count} vectors were asked for: {body!r:.200}")
    sizes = set()
    for number, item in enumerate(data):
        vector = item.get("embedding") if isinstance(item, dict) else None
        if not isinstance(vector, list) or not vector or item.get("index") != number:
            raise Violation("wrong-body", f"vector {number} is {item!r:.200}")
        sizes.add(len(vector))
    if len(sizes) > 1:
        raise Violation("wrong-body", f"vectors of different sizes: {sorted(sizes)}")
    return usage_of(body, max_tokens=None, has_completion=False)


def check_model_list(body: object) -> list[dict[str, Any]]:
    """The models. Raises: Violation."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list) or not all(isinstance(item, dict) and item.get("id") for item in data):
        raise Violation("wrong-body", f"no list of models: {body!r:.200}")
    return data
