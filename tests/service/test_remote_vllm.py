"""The backend `vllm` in front of a server that runs elsewhere: here another instance of this service."""

from __future__ import annotations

import time

import httpx
import openai

from tests.conformance.conftest import Instance
from tests.service.conftest import Start

KEY = "server-key-1"


def _chat(gateway: Instance, **fields: object) -> httpx.Response:
    body = {"model": "fake-echo", "messages": [{"role": "user", "content": "over there"}], **fields}
    return httpx.post(f"{gateway.base_url}/v1/chat/completions", json=body, timeout=30)


def test_a_server_elsewhere_is_served_without_a_runner_and_its_end_shows(start: Start) -> None:
    server = start(LLM_DEFAULT_BACKEND="fake", LLM_API_TOKENS=KEY)
    gone = f"http://127.0.0.1:{Instance.free_port()}/v1"
    gateway = start(
        LLM_DEFAULT_BACKEND="vllm",
        LLM_VLLM_BASE_URL=f"{server.base_url}/v1,{gone}",
        LLM_VLLM_API_KEY=KEY,
        LLM_RATE_LIMIT_RPS="0",
    )
    client = openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key="x", max_retries=0)

    answers = [_chat(gateway, seed=seed).json() for seed in range(6)]
    stream = client.chat.completions.create(
        model="fake-echo", messages=[{"role": "user", "content": "one two three"}], stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    models = httpx.get(f"{gateway.base_url}/v1/models").json()["data"]
    listed = next(model for model in models if model["id"] == "fake-echo")
    load = httpx.post(
        f"{gateway.base_url}/v1/models/load", json={"model": "fake-echo", "backend": "vllm"}
    ).status_code
    health = httpx.get(f"{gateway.base_url}/health").json()
    log = gateway.log.read_text()

    assert {answer["choices"][0]["message"]["content"] for answer in answers} == {"over there"}
    assert {answer["backend"] for answer in answers} == {"vllm"}
    assert streamed == "one two three"
    assert (listed["id"], listed["backend"], listed["loaded"], listed["context_length"]) == (
        "fake-echo",
        "vllm",
        True,
        8192,
    )
    assert load == 501
    assert health["status"] == "healthy"
    assert health["backends"][0]["message"] == "1 of 2 servers: Connection refused"
    assert "VLLMRunner" not in log
    assert KEY not in log

    server.stop()
    refused = _chat(gateway)
    deadline = time.monotonic() + 10
    while httpx.get(f"{gateway.base_url}/ready").status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.1)

    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert httpx.get(f"{gateway.base_url}/ready").status_code == 503
    assert httpx.get(f"{gateway.base_url}/health").json()["status"] == "unhealthy"
