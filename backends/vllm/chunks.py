"""The JSON that servers answer with, typed as loosely as their differences ask for.

One form for a streamed chunk and for a whole answer: a whole one has `message` where a chunk has `delta`. What is read
only now and then stays undecoded (`logprobs`, `error`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

_RAW = msgspec.Raw(b"")

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""Of tokens. What lies beyond could neither be added up nor passed on to the gateway."""
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Function(msgspec.Struct, gc=False):
    """Of a tool call. `arguments` should be text; some servers send the object itself."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, gc=False):
    """A piece of a tool call, or a whole one."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Message(msgspec.Struct, gc=False):
    """A delta or a message."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice's part of a chunk, or one whole choice."""

    index: int = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | Int64 | None = None
    matched_stop: str | Int64 | None = None
    """SGLang's name for `stop_reason`."""
    logprobs: msgspec.Raw = _RAW
    token_ids: list[int] | None = None


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: Count | None = None


class Counts(msgspec.Struct, gc=False):
    """`usage`."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None

    @property
    def cached(self) -> int:
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0

    @property
    def reasoning(self) -> int:
        details = self.completion_tokens_details
        return (details.reasoning_tokens or 0) if details is not None else 0


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream, or one whole answer."""

    choices: list[Choice] | None = None
    usage: Counts | None = None
    error: msgspec.Raw = _RAW
    object: str | None = None


class TopLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class ChatLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] | None = None


class Logprobs(msgspec.Struct, gc=False):
    """Chat's form (`content`) or text completions' (the parallel lists). llama-server answers both in chat's."""

    content: list[ChatLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_logprobs = msgspec.json.Decoder(Logprobs | None).decode
