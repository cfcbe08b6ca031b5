"""OpenAI's chat and text completions as its API reference describes them.

`Model` answers deterministically: it repeats one sentence until `max_tokens`, a stop string or its own end.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.backends.provider_upstreams.server import Call, Wire

SENTENCE = "A river is water that flows to the sea — 川は海へ 🌊 and it never asks why."
_TOKEN = re.compile(r"\s*\S{1,8}|\s+")
CREATED = 1_760_000_000


def split(text: str) -> list[str]:
    return _TOKEN.findall(text)


def json_text(document: object) -> str:
    """As a provider writes it that does not escape what is not ASCII."""
    return json.dumps(document, ensure_ascii=False)


def error(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def usage(prompt: int, completion: int, *, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def completion(
    text: str | None,
    *,
    finish_reason: str = "stop",
    model: str = "gpt-4o",
    counts: dict[str, Any] | None = None,
    **message: Any,
) -> dict[str, Any]:
    """A whole chat completion with one choice."""
    return {
        "id": "chatcmpl-up1",
        "object": "chat.completion",
        "created": CREATED,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None, **message},
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": counts if counts is not None else usage(9, 3),
        "service_tier": "default",
        "system_fingerprint": "fp_1",
    }


def chunk(
    delta: dict[str, Any] | None,
    *,
    finish_reason: str | None = None,
    index: int = 0,
    counts: dict[str, Any] | None = None,
    model: str = "gpt-4o",
    logprobs: Any = None,
) -> dict[str, Any]:
    """One chunk of a stream; `delta=None` has no choices."""
    choices = []
    if delta is not None:
        choices = [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}]
    return {
        "id": "chatcmpl-up1",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": model,
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": choices,
        "usage": counts,
    }


async def stream(wire: Wire, chunks: Sequence[object]) -> None:
    """The chunks as events, then `[DONE]`."""
    await wire.begin_stream()
    for one in chunks:
        await wire.event(one)
    await wire.event("[DONE]")
    await wire.end_stream()


@dataclass(slots=True)
class Model:
    """A scripted provider of chat and text completions."""

    count: Callable[[Any], int] | None = None
    """Tokens of a list of messages or of a prompt; None takes the number of pieces."""

    length: int | None = 24
    """Tokens of an answer that nothing else ends; None goes on for ever."""
    itl_s: float = 0.0
    context_length: int = 4096

    async def __call__(self, call: Call, wire: Wire) -> None:
        if call.path.endswith("/chat/completions"):
            await self._chat(call, wire)
        elif call.path.endswith("/completions"):
            await self._text(call, wire)
        else:
            await wire.json(404, error(f"Unknown path {call.path}", kind="invalid_request_error"))

    async def _chat(self, call: Call, wire: Wire) -> None:
        body = call.body
        prompt_tokens = self._count(body["messages"])
        if prompt_tokens >= self.context_length:
            await wire.json(
                400,
                error(
                    f"This model's maximum context length is {self.context_length} tokens. However, your messages "
                    f"resulted in {prompt_tokens} tokens. Please reduce the length of the messages.",
                    kind="invalid_request_error",
                    code="context_length_exceeded",
                    param="messages",
                ),
            )
            return
        n = body.get("n") or 1
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        with_logprobs = bool(body.get("logprobs"))
        top = body.get("top_logprobs") or 0
        if not body.get("stream"):
            said = [self._say(limit, body.get("stop")) for _ in range(n)]
            document = completion(None, model=body["model"])
            document["choices"] = [
                {
                    "index": i,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": {"content": [_logprob(t, top) for t in tokens], "refusal": None}
                    if with_logprobs
                    else None,
                    "finish_reason": reason,
                }
                for i, (tokens, text, reason) in enumerate(said)
            ]
            document["usage"] = usage(prompt_tokens, sum(len(tokens) for tokens, _, _ in said))
            await asyncio.sleep(self.itl_s * len(said[0][0]))
            await wire.json(200, document)
            return
        await wire.begin_stream()
        for i in range(n):
            await wire.event(chunk({"role": "assistant", "content": ""}, index=i, model=body["model"]))
        completion_tokens = 0
        endless = self.length is None and limit is None
        while True:
            tokens, text, reason = self._say(64 if endless else limit, body.get("stop"))
            shown = 0
            for token in tokens:
                piece = text[shown : shown + len(token)]
                shown += len(piece)
                for i in range(n):
                    completion_tokens += 1
                    if piece:
                        extra = (
                            {"content": [_logprob(token, top)], "refusal": None} if with_logprobs else None
                        )
                        await wire.event(
                            chunk({"content": piece}, index=i, model=body["model"], logprobs=extra)
                        )
                await asyncio.sleep(self.itl_s)
            if not endless:
                break
        for i in range(n):
            await wire.event(chunk({}, index=i, finish_reason=reason, model=body["model"]))
        if (body.get("stream_options") or {}).get("include_usage"):
            await wire.event(chunk(None, counts=usage(prompt_tokens, completion_tokens), model=body["model"]))
        await wire.event("[DONE]")
        await wire.end_stream()

    async def _text(self, call: Call, wire: Wire) -> None:
        body = call.body
        prompt = body["prompt"]
        if isinstance(prompt, list) and isinstance(prompt[0], str):
            prompt = "".join(prompt)  # a list of one; several would be several choices
        count = self._count(prompt)
        if count >= self.context_length:
            message = (
                f"This model's maximum context length is {self.context_length} tokens, however you requested "
                f"{count} tokens ({count} in your prompt; 0 for the completion)."
            )
            await wire.json(400, error(message, kind="invalid_request_error"))
            return
        n = body.get("n") or 1
        said = [self._say(body.get("max_tokens") or 16, body.get("stop")) for _ in range(n)]
        counts = usage(count, sum(len(tokens) for tokens, _, _ in said))
        head = {"id": "cmpl-up1", "object": "text_completion", "created": CREATED, "model": body["model"]}
        if not body.get("stream"):
            choices = [
                {"index": i, "text": text, "logprobs": None, "finish_reason": reason}
                for i, (_, text, reason) in enumerate(said)
            ]
            await wire.json(200, {**head, "choices": choices, "usage": counts})
            return
        await wire.begin_stream()
        for i, (_, text, reason) in enumerate(said):
            for piece in split(text):
                choice = {"index": i, "text": piece, "logprobs": None, "finish_reason": None}
                await wire.event({**head, "choices": [choice]})
                await asyncio.sleep(self.itl_s)
            await wire.event(
                {**head, "choices": [{"index": i, "text": "", "logprobs": None, "finish_reason": reason}]}
            )
        if (body.get("stream_options") or {}).get("include_usage"):
            await wire.event({**head, "choices": [], "usage": counts})
        await wire.event("[DONE]")
        await wire.end_stream()

    def _count(self, prompt: Any) -> int:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return len(prompt)
        if self.count is not None:
            return self.count(prompt)
        if isinstance(prompt, str):
            return len(split(prompt))
        return sum(4 + len(split(_content(message))) for message in prompt)

    def _say(self, limit: int | None, stop: Any) -> tuple[list[str], str, str]:
        """Tokens, the text that is shown of them, the finish reason."""
        wanted = self.length if limit is None else limit if self.length is None else min(limit, self.length)
        assert wanted is not None
        once = split(SENTENCE)
        again = [" " + once[0].lstrip(), *once[1:]]
        tokens = once[:wanted]
        while len(tokens) < wanted:
            tokens += again[: wanted - len(tokens)]
        reason = "length" if limit is not None and wanted == limit else "stop"
        text = "".join(tokens)
        stops = [stop] if isinstance(stop, str) else stop or []
        cuts = [text.index(one) for one in stops if one in text]
        if cuts:
            cut, kept, seen = min(cuts), [], 0
            for token in tokens:
                if seen >= cut:
                    break
                kept.append(token)
                seen += len(token)
            return kept, text[:cut], "stop"
        return tokens, text, reason


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return content or ""


def _logprob(token: str, top: int) -> dict[str, Any]:
    entry = {"token": token, "logprob": -0.125, "bytes": list(token.encode())}
    others = [{"token": f"{i}", "logprob": -0.125 - i, "bytes": list(f"{i}".encode())} for i in range(1, top)]
    return {**entry, "top_logprobs": [entry, *others] if top else []}
