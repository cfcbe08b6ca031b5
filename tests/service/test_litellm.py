"""The cloud backend as it is served: `bentoml serve` with a provider on loopback behind it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.backends.provider_upstreams.openai_format import Model
from tests.backends.provider_upstreams.server import Upstream, upstream
from tests.conformance.conftest import Instance
from tests.service.conftest import Start

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(180),
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="LiteLLM is not installed"),
]

KEY = "sk-openai-0123456789abcdef"


@pytest.fixture
async def provider() -> AsyncIterator[Upstream]:
    async with upstream(Model(length=24, itl_s=0.02)) as one:
        yield one


async def served(start: Start, provider: Upstream, **settings: str) -> Instance:
    """In a thread: the provider lives on this event loop."""
    return await asyncio.to_thread(
        start,
        LLM_DEFAULT_BACKEND="litellm",
        LLM_RATE_LIMIT_RPS="0",
        OPENAI_API_KEY=KEY,
        OPENAI_API_BASE=f"{provider.url}/v1",
        ANTHROPIC_API_KEY="",
        OPENROUTER_API_KEY="",
        NO_PROXY="127.0.0.1",
        **settings,
    )


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": "What is a river?"}], **fields}


async def test_a_cloud_is_served_whole_and_streamed_by_two_workers(start: Start, provider: Upstream) -> None:
    instance = await served(start, provider, LLM_ARGS__LITELLM__WORKERS="2")
    async with httpx.AsyncClient(base_url=instance.base_url, timeout=60, trust_env=False) as client:
        whole = (await client.post("/v1/chat/completions", json=chat())).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.post("/v1/chat/completions", json=chat(**options))
        many = await asyncio.gather(
            *[client.post("/v1/chat/completions", json=chat(max_tokens=2)) for _ in range(8)]
        )
        models = (await client.get("/v1/models")).json()["data"]
        health = (await client.get("/health")).json()

    chunks = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    text = "".join(c["delta"].get("content", "") for one in chunks for c in one["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["backend"] == "litellm"
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 24
    assert chunks[-1]["usage"]["cost_usd"] == whole["usage"]["cost_usd"] > 0
    assert [answer.status_code for answer in many] == [200] * 8
    assert {"gpt-4o", "gpt-4"} <= {model["id"] for model in models if model["loaded"]}
    assert health["status"] == "healthy"
    assert KEY not in instance.log.read_text("utf-8")
    assert "What is a river?" not in instance.log.read_text("utf-8")


async def test_a_client_who_leaves_the_service_ends_the_providers_work(
    start: Start, provider: Upstream
) -> None:
    provider.answer = Model(length=None, itl_s=0.05, context_length=1 << 20)
    instance = await served(start, provider)
    async with httpx.AsyncClient(base_url=instance.base_url, timeout=60, trust_env=False) as client:
        async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as stream:
            await anext(stream.aiter_lines())
        await provider.calls[0].wait_until_ended()

        whole = asyncio.create_task(client.post("/v1/chat/completions", json=chat(max_tokens=1000)))
        await provider.wait_for_call(1)
        whole.cancel()
        await provider.calls[1].wait_until_ended()

    assert [call.client_left for call in provider.calls] == [True, True]


async def test_errors_of_a_provider_keep_the_wires_form(start: Start, provider: Upstream) -> None:
    instance = await served(start, provider)

    async def limited(_: Any, wire: Any) -> None:
        body = {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}
        await wire.json(429, body, retry_after="7")

    provider.answer = limited
    async with httpx.AsyncClient(base_url=instance.base_url, timeout=60, trust_env=False) as client:
        answer = await client.post("/v1/chat/completions", json=chat())
        unknown = await client.post("/v1/chat/completions", json=chat(model="no-such-model"))
        loading = await client.post("/v1/models/load", json={"model": "gpt-4o", "backend": "litellm"})
        text = await client.post("/v1/completions", json={"model": "gpt-4o", "prompt": "Once"})
        routed = await client.post("/v1/chat/completions", json=chat(api_base="http://evil.example"))

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert (loading.status_code, loading.json()["error"]["code"]) == (400, "backend_not_available")
    assert (text.status_code, text.json()["error"]["code"]) == (501, "not_implemented")
    assert routed.status_code == 422
