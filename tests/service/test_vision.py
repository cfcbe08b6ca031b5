"""Pictures as they are served: `bentoml serve`, the official client, a cloud and a server of pictures on loopback."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.backends.provider_upstreams.openai_format import Model
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream
from tests.conformance.conftest import Instance
from tests.openai_compat.pictures import JPEG, PNG, chunk, data_url, png, shown
from tests.service.conftest import Start

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(180),
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="LiteLLM is not installed"),
]

LARGE = png(1200, 800, chunks=chunk(b"tEXt", bytes(7 << 20)))


@pytest.fixture
async def provider() -> AsyncIterator[Upstream]:
    async with upstream(Model(length=4, itl_s=0.0, context_length=1 << 30)) as one:
        yield one


@pytest.fixture
async def pictures() -> AsyncIterator[Upstream]:
    async def answer(call: Call, wire: Wire) -> None:
        if call.path == "/away":
            await wire.whole(302, b"", location="http://169.254.169.254/latest/meta-data/")
        else:
            await wire.whole(200, JPEG, "application/octet-stream")

    async with upstream(answer) as one:
        yield one


async def served(start: Start, provider: Upstream, **settings: str) -> Instance:
    """In a thread: the provider lives on this event loop."""
    return await asyncio.to_thread(
        start,
        LLM_DEFAULT_BACKEND="litellm",
        LLM_ENABLED_BACKENDS="litellm,llamacpp",
        LLM_RATE_LIMIT_RPS="0",
        OPENAI_API_KEY="sk-openai-0123456789abcdef",
        OPENAI_API_BASE=f"{provider.url}/v1",
        ANTHROPIC_API_KEY="",
        OPENROUTER_API_KEY="",
        NO_PROXY="127.0.0.1",
        **settings,
    )


async def test_pictures_through_the_official_client(
    start: Start, provider: Upstream, pictures: Upstream
) -> None:
    instance = await served(start, provider, LLM_MEDIA_ALLOW=f"127.0.0.1:{pictures.port}")
    http_client = httpx.AsyncClient(trust_env=False, timeout=60)
    async with openai.AsyncOpenAI(
        base_url=f"{instance.base_url}/v1", api_key="none", max_retries=0, http_client=http_client
    ) as client:

        async def ask(*urls: str, model: str = "gpt-4o", **more: Any) -> Any:
            messages: Any = shown(*urls, **more)
            return await client.chat.completions.create(model=model, messages=messages)

        async def refusal(*urls: str, **more: Any) -> openai.BadRequestError:
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(*urls, **more)
            return refused.value

        answer = await ask(data_url(PNG), f"{pictures.url}/a.jpg", data_url(LARGE), detail="low")
        broken = await refusal(data_url(PNG[:-5]))
        elsewhere = await refusal("http://127.0.0.1:1/a.png")
        away = await refusal(f"{pictures.url}/away")
        blind = await refusal(data_url(PNG), model="smollm2")
        streamed: Any = shown(data_url(PNG))
        stream = await client.chat.completions.create(model="gpt-4o", messages=streamed, stream=True)
        text = "".join([piece.choices[0].delta.content or "" async for piece in stream if piece.choices])
        (listed,) = [model async for model in client.models.list() if model.id == "gpt-4o"]

    sent = [part["image_url"] for part in provider.bodies[0]["messages"][0]["content"][1:]]
    urls = data_url(PNG), data_url(JPEG, "image/jpeg"), data_url(LARGE)
    assert answer.choices[0].message.content == text
    assert sent == [{"url": url, "detail": "low"} for url in urls]
    assert len(provider.calls) == 2
    place = "messages[0].content[1]"
    assert [error.param for error in (broken, elsewhere, away, blind)] == [f"{place}.image_url"] * 3 + [place]
    assert "LLM_MEDIA_ALLOW" in elsewhere.message
    assert "169.254" not in away.message
    assert blind.code == "unsupported_parameter"
    assert "its capabilities: chat, completion" in blind.message
    assert "vision" in (listed.model_extra or {})["capabilities"]
    assert [call.path for call in pictures.calls] == ["/a.jpg", "/away"]
    assert "base64," not in instance.log.read_text("utf-8")
