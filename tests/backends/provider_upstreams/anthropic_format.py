"""Anthropic's Messages API as its reference describes it: whole messages, and streams of named events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.backends.provider_upstreams.server import Call, Wire

MODEL = "claude-sonnet-4-5"


def error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_up1"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thinking(thought: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thought, "signature": "c2lnbmF0dXJl"}


def tool_use(name: str, arguments: dict[str, Any], call_id: str = "toolu_up1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def usage(prompt: int, completion: int, *, cache_read: int = 0) -> dict[str, Any]:
    """`prompt` is what Anthropic calls input: without what was read from its cache."""
    return {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cache_read,
        "output_tokens": completion,
        "service_tier": "standard",
    }


def message(
    *blocks: dict[str, Any], stop_reason: str = "end_turn", counts: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "id": "msg_up1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(blocks),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": counts if counts is not None else usage(12, 6),
    }


def events(
    *blocks: dict[str, Any], stop_reason: str = "end_turn", counts: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The events of a stream that brings these blocks in small pieces, pings among them."""
    counts = counts if counts is not None else usage(12, 6)
    begun = message(counts={**counts, "output_tokens": 1})
    begun["stop_reason"] = None
    out: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(blocks):
        empty, deltas = _pieces(block)
        out.append({"type": "content_block_start", "index": index, "content_block": empty})
        if index == 0:
            out.append({"type": "ping"})
        out += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        out.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    out.append({"type": "message_delta", "delta": delta, "usage": counts})
    out.append({"type": "message_stop"})
    return out


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    import json

    if block["type"] == "text":
        said = block["text"]
        cuts = [said[i : i + 5] for i in range(0, len(said), 5)]
        return text(""), [{"type": "text_delta", "text": cut} for cut in cuts]
    if block["type"] == "thinking":
        thought = block["thinking"]
        cuts = [thought[i : i + 5] for i in range(0, len(thought), 5)]
        deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": cut} for cut in cuts]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    written = json.dumps(block["input"])
    cuts = ["", *[written[i : i + 7] for i in range(0, len(written), 7)]]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": cut} for cut in cuts]


async def stream(wire: Wire, sequence: Sequence[dict[str, Any]], *, gap_s: float = 0.0) -> None:
    await wire.begin_stream()
    for event in sequence:
        await wire.event(event, name=event["type"])
        await asyncio.sleep(gap_s)
    await wire.end_stream()


class Says:
    """An Anthropic that always answers with these blocks."""

    def __init__(self, *blocks: dict[str, Any], **fields: Any) -> None:
        self._blocks = blocks
        self._fields = fields

    async def __call__(self, call: Call, wire: Wire) -> None:
        if call.body.get("stream"):
            await stream(wire, events(*self._blocks, **self._fields))
        else:
            await wire.json(200, message(*self._blocks, **self._fields))
