"""Asking a scripted server through `Upstream`, and what of its events the tests look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from backends.types import Event, EventBatch, GenerationRequest, ReasoningDelta, ToolCallDelta
from backends.vllm.upstream import Upstream
from tests.backends.contract import CHAT, request
from tests.backends.openai_upstream import OpenAIUpstream, Script

FIVE = ("1", "2", "3", "4", "5")


def chat(**fields: Any) -> GenerationRequest:
    return request("card", CHAT, **{"temperature": 1.0, "max_tokens": None, **fields})


def streamed(**fields: Any) -> GenerationRequest:
    return chat(stream=True, **fields)


async def batches_of(upstream: Upstream, wanted: GenerationRequest) -> list[EventBatch]:
    async with asyncio.timeout(10):
        return [batch async for batch in upstream.generate(wanted, served_name="m")]


async def events_of(upstream: Upstream, wanted: GenerationRequest) -> list[Event]:
    return [event for batch in await batches_of(upstream, wanted) for event in batch]


async def answer(
    server: OpenAIUpstream, upstream: Upstream, wanted: GenerationRequest, script: Script
) -> list[Event]:
    server.answers(script)
    return await events_of(upstream, wanted)


def reasoning_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def calls_of(events: Sequence[Event]) -> list[ToolCallDelta]:
    return [event for event in events if isinstance(event, ToolCallDelta)]


async def first_of(generator: AsyncGenerator[EventBatch, None]) -> EventBatch:
    async with asyncio.timeout(10):
        return await anext(generator)


def entry(token: str, logprob: float, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), **more}
