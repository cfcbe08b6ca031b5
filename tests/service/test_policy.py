"""Callers, spill-over, budgets and Redis as they are served: `bentoml serve` with a provider on loopback behind it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_compat.principals import digest_of
from tests.backends.provider_upstreams.openai_format import Model
from tests.backends.provider_upstreams.server import Upstream, upstream
from tests.conformance.conftest import Instance
from tests.openai_compat.redis_server import RedisServer
from tests.service.conftest import Start

CATALOGUE = """
models:
  - id: cloudy
    sources: {litellm: {name: openai/gpt-4o}}
  - id: shaky
    sources: {litellm: {name: anthropic/claude-3-opus-20240229}}
    fallbacks: [here]
  - id: here
    sources: {fake: {name: here}}
"""


def caller(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "token_sha256": digest_of(name.encode()).hex(), **fields}


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
async def provider() -> AsyncIterator[Upstream]:
    async with upstream(Model(length=24)) as one:
        yield one


@pytest.fixture
def settings(tmp_path: Path, provider: Upstream) -> dict[str, str]:
    """Alice may spend next to nothing, Bob what he likes; what Eve sends stays here."""
    (tmp_path / "catalogue.yaml").write_text(CATALOGUE)
    callers = [
        caller("alice", budget_usd_per_day=1e-9),
        caller("bob"),
        caller("eve", privacy="local", limits={"rps": 1000, "burst": 1000}),
    ]
    (tmp_path / "principals.json").write_text(json.dumps({"principals": callers}))
    return {
        "LLM_DEFAULT_BACKEND": "litellm",
        "LLM_ENABLED_BACKENDS": "litellm,fake",
        "LLM_CATALOGUE": str(tmp_path / "catalogue.yaml"),
        "LLM_PRINCIPALS_FILE": str(tmp_path / "principals.json"),
        "LLM_STATE_DIR": str(tmp_path / "state"),
        "LLM_RATE_LIMIT_RPS": "0",
        "OPENAI_API_KEY": "sk-openai-0123456789abcdef",
        "OPENAI_API_BASE": f"{provider.url}/v1",
        "ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef",
        "ANTHROPIC_API_BASE": f"http://127.0.0.1:{Instance.free_port()}",
        "OPENROUTER_API_KEY": "",
        "NO_PROXY": "127.0.0.1",
    }


async def ask(instance: Instance, token: str, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "What is a river?"}], **fields}
    async with httpx.AsyncClient(base_url=instance.base_url, timeout=60, trust_env=False) as client:
        headers = {"authorization": f"Bearer {token}"}
        return await client.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.engine
@pytest.mark.timeout(180)
@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="LiteLLM is not installed")
async def test_callers_clouds_and_money(start: Start, settings: dict[str, str], provider: Upstream) -> None:
    instance = await asyncio.to_thread(start, **settings)

    assert (await ask(instance, "nobody", "here")).status_code == 401
    assert (await ask(instance, "eve", "here")).status_code == 200
    kept = await ask(instance, "eve", "cloudy")
    assert (kept.status_code, kept.json()["error"]["param"]) == (400, "privacy")
    assert len(provider.calls) == 0

    spilled = await ask(instance, "bob", "shaky", stream=True)
    assert spilled.headers["x-llm-fallback-reason"] == "unavailable"
    assert '"model":"here"' in spilled.text
    assert (await ask(instance, "eve", "shaky")).status_code == 400

    first, second = [await ask(instance, "alice", "cloudy") for _ in range(2)]
    assert first.status_code == 200
    assert float(first.headers["x-llm-cost-usd"]) == pytest.approx(first.json()["usage"]["cost_usd"])
    assert (second.status_code, second.json()["error"]["code"]) == (429, "insufficient_quota")
    assert second.headers["x-should-retry"] == "false"
    assert (await ask(instance, "alice", "here")).status_code == 200

    os.killpg(instance.process.pid, signal.SIGKILL)
    instance = await asyncio.to_thread(start, **settings)
    assert (await ask(instance, "alice", "cloudy")).status_code == 429
    async with httpx.AsyncClient(base_url=instance.base_url, timeout=60, trust_env=False) as client:
        scrape = (await client.get("/metrics")).text
    assert 'llm:principal_requests_total{principal="alice"} 1.0' in scrape
    assert '"principal":"alice"' in instance.log.read_text("utf-8")


@pytest.mark.timeout(180)
async def test_two_services_are_one_by_their_redis(start: Start, redis_server: RedisServer) -> None:
    shared = {
        "LLM_DEFAULT_BACKEND": "fake",
        "LLM_REDIS_URL": redis_server.url,
        "LLM_REDIS_PREFIX": f"test-{secrets.token_hex(4)}:",
        "LLM_RATE_LIMIT_RPS": "0.01",
        "LLM_RATE_LIMIT_BURST": "8",
    }
    instances = [start(**shared), start(**shared)]

    async def get(number: int) -> int:
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            return (await client.get(f"{instances[number % 2].base_url}/v1/models")).status_code

    assert [await get(number) for number in range(12)] == [200] * 8 + [429] * 4
    redis_server.stop()
    assert await get(0) == 200
    for instance in instances:
        instance.stop()
        assert "Traceback" not in instance.log.read_text("utf-8")
