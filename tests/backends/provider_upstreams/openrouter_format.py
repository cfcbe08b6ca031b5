"""OpenRouter's chat completions: OpenAI's format with comment lines, `reasoning`, a price in `usage`, numeric error
codes, and errors that arrive inside a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.backends.provider_upstreams import openai_format
from tests.backends.provider_upstreams.server import Wire

MODEL = "meta-llama/llama-3-70b-instruct"


def error(code: int, message: str, **metadata: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **({"metadata": metadata} if metadata else {})}}


def usage(prompt: int, completion: int, *, cost: float, reasoning: int = 0) -> dict[str, Any]:
    counts = openai_format.usage(prompt, completion, reasoning=reasoning)
    return {**counts, "cost": cost, "cost_details": {"upstream_inference_cost": None}, "is_byok": False}


def completion(text: str, *, reasoning: str | None = None, **fields: Any) -> dict[str, Any]:
    details = [{"type": "reasoning.text", "text": reasoning, "format": "unknown", "index": 0}]
    thought = {"reasoning": reasoning, "reasoning_details": details} if reasoning else {"reasoning": None}
    document = openai_format.completion(text, model=MODEL, **thought, **fields)
    document["id"] = "gen-up1"
    document["provider"] = "Together"
    document["choices"][0]["native_finish_reason"] = "stop"
    return document


def chunk(delta: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    document = openai_format.chunk(delta, model=MODEL, **fields)
    document["id"] = "gen-up1"
    document["provider"] = "Together"
    for choice in document["choices"]:
        choice["native_finish_reason"] = choice["finish_reason"]
    return document


def thought(text: str) -> dict[str, Any]:
    """A delta of reasoning."""
    details = [{"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}]
    return {"role": "assistant", "content": "", "reasoning": text, "reasoning_details": details}


def error_chunk(code: int, message: str) -> dict[str, Any]:
    """How a failure is told once the stream has begun."""
    document = chunk({"content": ""}, finish_reason="error")
    return {**document, **error(code, message)}


async def stream(wire: Wire, chunks: Sequence[object]) -> None:
    await wire.begin_stream()
    await wire.piece(b": OPENROUTER PROCESSING\n\n")
    for number, one in enumerate(chunks):
        if number == 1:
            await wire.piece(b": OPENROUTER PROCESSING\n\n")
        await wire.event(one)
    await wire.event("[DONE]")
    await wire.end_stream()
