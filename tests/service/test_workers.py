"""Several gateway workers are one service: its limits and its counters."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.service.conftest import Start

MODEL = "smollm2-135m-instruct"


@pytest.mark.engine
async def test_the_concurrency_limit_holds_over_all_workers(start: Start) -> None:
    instance = start(
        LLM_DEFAULT_BACKEND="llamacpp",
        LLM_RATE_LIMIT_RPS="0",
        LLM_MAX_CONCURRENT_COMPLETIONS="3",
        LLM_ARGS__GATEWAY__WORKERS="2",
    )
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": 150,
        "ignore_eos": True,
    }

    async def ask() -> int:
        # A connection of its own: the kernel spreads connections, not requests, over the workers.
        async with httpx.AsyncClient(timeout=120) as client:
            return (await client.post(f"{instance.base_url}/v1/chat/completions", json=body)).status_code

    statuses = await asyncio.gather(*(ask() for _ in range(12)))

    assert sorted(statuses) == [200] * 3 + [503] * 9


async def test_the_rate_limit_and_the_scrape_cover_all_workers(start: Start) -> None:
    instance = start(
        LLM_DEFAULT_BACKEND="fake",
        LLM_RATE_LIMIT_RPS="0.01",
        LLM_RATE_LIMIT_BURST="15",
        LLM_ARGS__GATEWAY__WORKERS="2",
    )

    async def ask() -> int:
        async with httpx.AsyncClient(timeout=30) as client:
            return (await client.get(f"{instance.base_url}/v1/models")).status_code

    statuses = [await ask() for _ in range(40)]
    async with httpx.AsyncClient() as client:
        scrape = (await client.get(f"{instance.base_url}/metrics")).text

    counted = sum(
        float(line.rsplit(" ", 1)[1])
        for line in scrape.splitlines()
        if line.startswith("llm:http_requests_total") and '"/v1/models"' in line
    )
    assert statuses.count(200) == 15
    assert counted == 40
