"""Requests to LiteLLM's backend, and scripted answers to them."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import ServiceError
from backends.litellm.backend import LiteLLMBackend
from backends.types import ChatPrompt, Event
from models.errors import ModelError
from tests.backends.contract import events_of, request
from tests.backends.litellm_backends import KEYS
from tests.backends.provider_upstreams.openai_format import stream
from tests.backends.provider_upstreams.server import Answer, Call, Wire

CHAT = ChatPrompt(messages=[{"role": "user", "content": "A secret question of mine"}])
MODELS = {
    "openai": "gpt-4o",
    "anthropic": "claude-sonnet-4-5",
    "openrouter": "openrouter/meta-llama/llama-3-70b-instruct",
}
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
each = pytest.mark.parametrize("name", list(MODELS))


def answers_with(status: int, document: Any, **headers: str) -> Answer:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.json(status, document, **headers)

    return answer


async def refusal(
    backend: LiteLLMBackend, model: str = MODELS["openai"], *, stream: bool = False, **fields: Any
) -> ServiceError | ModelError:
    with pytest.raises((ServiceError, ModelError)) as raised:
        await events_of(backend, request(model, CHAT, stream=stream, **fields))
    error = raised.value
    assert isinstance(error, ServiceError | ModelError)
    for secret in (*KEYS.values(), "127.0.0.1", "http", "secret question", "litellm", "Traceback"):
        assert secret not in error.message
    return error


def openai_stream(*chunks: Any, end: bool = True) -> Answer:
    async def answer(_: Call, wire: Wire) -> None:
        if end:
            await stream(wire, chunks)
            return
        await wire.begin_stream()
        for one in chunks:
            await wire.event(one)
        wire.hang_up()

    return answer


async def broken_stream(backend: LiteLLMBackend, model: str) -> tuple[list[Event], ServiceError]:
    """What was passed on, and the error that ended it."""
    seen: list[Event] = []

    async def read() -> None:
        async for batch in backend.generate(request(model, CHAT, stream=True)):
            seen.extend(batch)

    with pytest.raises(ServiceError) as raised:
        await read()
    assert not any(type(event).__name__ in ("ChoiceFinished", "Finished") for event in seen)
    return seen, raised.value
