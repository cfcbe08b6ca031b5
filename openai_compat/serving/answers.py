"""What an answer looks like on the wire, whole or in chunks. One object per response.

The text of a token passes here once per token and stream, so what is the same in each chunk is encoded once
and per token only the text itself. No chunk is empty: a choice has its role chunk (chat), its texts, reasoning and
tool calls, and one chunk with its finish reason.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from typing import Any, Final

import msgspec
from typing_extensions import override

from backends.errors import BackendFailed
from backends.types import (
    ChoiceFinished,
    EventBatch,
    ReasoningDelta,
    TextDelta,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
)
from openai_compat import sse
from openai_compat.serving.collect import Choice, Collected
from openai_compat.serving.logprobs import CompletionLogprobs, chat_entries

_encode: Final = msgspec.json.Encoder().encode
_END: Final = b"}\n\n"
_NO_REASON: Final = b',"finish_reason":null}]}\n\n'


class Answer(ABC):
    """One response: its id, its time, its form.

    `num_choices` is prompts · n; `with_logprobs`: the caller asked for them; `include_usage`: a stream ends
    with a usage chunk; `with_receipt`: the last chunk has a receipt.
    """

    id_prefix: str
    object: str
    chunk_object: str

    def __init__(
        self,
        *,
        model: str,
        backend: str,
        num_choices: int,
        with_logprobs: bool,
        include_usage: bool,
        with_receipt: bool = False,
    ) -> None:
        self.id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model = model
        self.backend = backend
        self.num_choices = num_choices
        self.with_logprobs = with_logprobs
        self.include_usage = include_usage
        self._num_open = num_choices if with_receipt and not include_usage else 0
        """Choices until the chunk that is to have the receipt; it is held until there is one."""
        self._held: ChoiceFinished | None = None
        head = {"id": self.id, "object": self.chunk_object, "created": self.created, "model": model}
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":'
        opening = self._head + b'[{"index":'
        self._text_heads = [opening + str(i).encode() + self._text_open for i in range(num_choices)]
        self._plain_tail = self._text_close + _NO_REASON

    _text_open: bytes
    _text_close: bytes

    def chunks(self, batch: EventBatch) -> bytes:
        """The frames of one batch of events; b"" if none of them shows."""
        if len(batch) == 1 and type(batch[0]) is TextDelta:
            return self._text(batch[0])
        parts: list[bytes] = []
        for event in batch:
            if type(event) is TextDelta:
                parts.append(self._text(event))
            elif type(event) is ChoiceFinished:
                if self._num_open == 1:
                    self._held = event
                else:
                    parts.append(self._finish(event))
                self._num_open -= 1
            elif type(event) is ReasoningDelta or type(event) is ToolCallDelta:
                parts.append(self._beside_text(event))
        return b"".join(parts)

    def ending(self, usage: Usage, receipt: bytes | None = None) -> bytes:
        """What follows the last choice: the usage chunk if it was asked for, and the end mark. The receipt is in the
        last chunk, which without a usage chunk is the one that ends the last choice."""
        last = self._finish(self._held) if self._held is not None else b""
        if self.include_usage:
            last = self._head + b'[],"usage":' + _encode(usage_object(usage)) + _END
        if receipt is not None and last:
            last = last[: -len(_END)] + b',"llm_receipt":' + receipt + _END
        return last + sse.DONE

    def document(self, collected: Collected, receipt: bytes | None = None) -> bytes:
        """The whole answer as one JSON document."""
        assert collected.usage is not None
        return _encode(
            {
                "id": self.id,
                "object": self.object,
                "created": self.created,
                "model": self.model,
                "choices": [self._choice(index, collected) for index in range(self.num_choices)],
                "usage": usage_object(collected.usage),
                "backend": self.backend,
                **({} if receipt is None else {"llm_receipt": msgspec.Raw(receipt)}),
            }
        )

    def _text(self, event: TextDelta) -> bytes:
        head = self._text_heads[event.index] + _encode(event.text)
        if event.logprobs and self.with_logprobs:
            logprobs = _encode(self._logprobs(event.index, event.logprobs))
            return head + self._text_close + b',"logprobs":' + logprobs + _NO_REASON
        return head + self._plain_tail

    def _finish(self, event: ChoiceFinished) -> bytes:
        logprobs = b""
        if event.logprobs and self.with_logprobs:
            logprobs = b',"logprobs":' + _encode(self._logprobs(event.index, event.logprobs))
        return b'%b[{"index":%d,%b%b,"finish_reason":"%b"}]}\n\n' % (
            self._head,
            event.index,
            self._nothing,
            logprobs,
            event.finish_reason.encode(),
        )

    _nothing: bytes

    @abstractmethod
    def _beside_text(self, event: ReasoningDelta | ToolCallDelta) -> bytes:
        """The frame of what is no text. Raises: BackendFailed where the form has no place for it."""

    @abstractmethod
    def _choice(self, index: int, collected: Collected) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, index: int, tokens: tuple[TokenLogprobs, ...] | list[TokenLogprobs]) -> Any: ...


class ChatAnswer(Answer):
    """`chat.completion` and its chunks."""

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    _text_open = b',"delta":{"content":'
    _text_close = b"}"
    _nothing = b'"delta":{}'

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._silent = set(range(self.num_choices))
        """Choices whose role chunk is still to come."""

    @override
    def _text(self, event: TextDelta) -> bytes:
        if event.index in self._silent:
            return self._role(event.index) + super()._text(event)
        return super()._text(event)

    @override
    def _finish(self, event: ChoiceFinished) -> bytes:
        role = self._role(event.index) if event.index in self._silent else b""
        return role + super()._finish(event)

    @override
    def _beside_text(self, event: ReasoningDelta | ToolCallDelta) -> bytes:
        role = self._role(event.index) if event.index in self._silent else b""
        if type(event) is ReasoningDelta:
            text = _encode(event.text)
            delta = b'{"reasoning_content":%b,"reasoning":%b}' % (text, text)
        else:
            assert isinstance(event, ToolCallDelta)
            delta = _encode({"tool_calls": [_call_delta(event)]})
        return b'%b%b[{"index":%d,"delta":%b%b' % (role, self._head, event.index, delta, _NO_REASON)

    def _role(self, index: int) -> bytes:
        self._silent.discard(index)
        return b'%b[{"index":%d,"delta":{"role":"assistant"}%b' % (self._head, index, _NO_REASON)

    @override
    def _choice(self, index: int, collected: Collected) -> dict[str, Any]:
        choice = collected.choices[index]
        answer: dict[str, Any] = {
            "index": index,
            "message": _message(choice),
            "finish_reason": choice.finish_reason,
        }
        if self.with_logprobs:
            answer["logprobs"] = self._logprobs(index, choice.logprobs)
        return answer

    @override
    def _logprobs(self, index: int, tokens: tuple[TokenLogprobs, ...] | list[TokenLogprobs]) -> Any:
        return {"content": chat_entries(tokens)}


class CompletionAnswer(Answer):
    """`text_completion` and its chunks, which have the same form."""

    id_prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"
    _text_open = b',"text":'
    _text_close = b""
    _nothing = b'"text":""'

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._offsets = [CompletionLogprobs() for _ in range(self.num_choices)]

    @override
    def _beside_text(self, event: ReasoningDelta | ToolCallDelta) -> bytes:
        raise _only_text()

    @override
    def _choice(self, index: int, collected: Collected) -> dict[str, Any]:
        choice = collected.choices[index]
        if choice.reasoning_pieces or choice.calls:
            raise _only_text()
        answer: dict[str, Any] = {
            "index": index,
            "text": choice.text,
            "finish_reason": choice.finish_reason,
        }
        if self.with_logprobs:
            answer["logprobs"] = self._logprobs(index, choice.logprobs)
        return answer

    @override
    def _logprobs(self, index: int, tokens: tuple[TokenLogprobs, ...] | list[TokenLogprobs]) -> Any:
        return self._offsets[index].take(tokens)


def usage_object(usage: Usage) -> dict[str, Any]:
    """`usage`, the same in a stream and in a whole answer. What is zero, exact or unknown is left out at its end."""
    answer: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens:
        answer["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.is_estimated:
        answer["is_estimated"] = True
    if usage.cost_usd is not None:
        answer["cost_usd"] = usage.cost_usd
    return answer


def _message(choice: Choice) -> dict[str, Any]:
    """A chat's message; its content is null only where there are tool calls instead."""
    text = choice.text
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not choice.calls else None}
    if choice.reasoning_pieces:
        message["reasoning_content"] = message["reasoning"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.arguments)},
            }
            for call in choice.calls
        ]
    return message


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    """The first delta of a call names it, the others only go on with its arguments."""
    if event.name is None:
        return {"index": event.call_index, "function": {"arguments": event.arguments}}
    return {
        "index": event.call_index,
        "id": event.id,
        "type": "function",
        "function": {"name": event.name, "arguments": event.arguments},
    }


def _only_text() -> BackendFailed:
    return BackendFailed("The backend answered a text completion with something other than text")


def engine_request_id(request_id: str, answer: Answer) -> str:
    """The id under which the backend knows the request. It begins with the caller's, so that logs can be joined,
    and is unique, because nothing keeps a caller from sending one id twice at a time."""
    return f"{request_id}.{answer.id[-8:]}"
