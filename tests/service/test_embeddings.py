"""Embeddings through a served instance: the engine in its own process, BentoML's dispatcher in front of it."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.conformance.conftest import ROOT, Instance
from tests.service.conftest import Start

MODEL = "all-minilm-l6-v2"
TOKEN = "runner-token-1"
pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]


def body(text: str) -> dict[str, str]:
    return {"model": MODEL, "input": text, "encoding_format": "base64"}


def vector_of(answer: httpx.Response) -> tuple[float, ...]:
    assert answer.status_code == 200, answer.text
    return struct.unpack("<384f", base64.b64decode(answer.json()["data"][0]["embedding"]))


async def ask_all(url: str, texts: list[str], *, clients: int) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:
        return await asyncio.gather(*(client.post(f"{url}/v1/embeddings", json=body(text)) for text in texts))


async def test_sixty_four_clients_lose_nothing_and_get_each_their_own(start: Start) -> None:
    instance = start(LLM_RATE_LIMIT_RPS="0")
    texts = [f"sentence number {i % 100} about rivers" for i in range(640)]

    answers = await ask_all(instance.base_url, texts, clients=64)

    vectors = [vector_of(answer) for answer in answers]
    for i in range(100):
        same = [vectors[j] for j in range(i, 640, 100)]
        assert all(sum(a * b for a, b in zip(same[0], one, strict=True)) > 0.999 for one in same)
    assert {answer.json()["usage"]["prompt_tokens"] for answer in answers} <= {7, 8}


def test_openais_client_gets_the_vectors_of_a_chatting_service(start: Start) -> None:
    instance = start(LLM_RATE_LIMIT_RPS="0")
    client = openai.OpenAI(base_url=f"{instance.base_url}/v1", api_key="none", max_retries=0, timeout=120)

    found = client.embeddings.create(model=MODEL, input=["river", "stone"], dimensions=16)
    said = client.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "Hi"}], max_tokens=4
    )

    assert [len(entry.embedding) for entry in found.data] == [16, 16]
    assert found.usage.prompt_tokens == 6
    assert said.usage is not None
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="word " * 300)
    assert caught.value.code == "context_length_exceeded"


async def test_what_is_under_way_at_a_sigterm_is_answered(start: Start) -> None:
    instance = start(LLM_RATE_LIMIT_RPS="0")
    await ask_all(instance.base_url, ["warm"], clients=1)
    running = asyncio.create_task(ask_all(instance.base_url, ["word " * 200] * 48, clients=48))
    await asyncio.sleep(0.3)

    instance.process.send_signal(signal.SIGTERM)
    answers = await running

    assert {answer.status_code for answer in answers} <= {200, 503}
    assert sum(answer.status_code == 200 for answer in answers) >= 40


@pytest.fixture
def runner_url(tmp_path: Path) -> Iterator[str]:
    """The llama.cpp runner by itself, on a port."""
    port = Instance.free_port()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LLM_", "BENTOML_"))
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bentoml", "serve", "service:LlamaCppRunner", "--port", str(port)],
            cwd=ROOT,
            env=environment
            | {"BENTOML_HOME": str(tmp_path), "BENTOML_DO_NOT_TRACK": "True"}
            | {"LLM_DEFAULT_BACKEND": "llamacpp", "LLM_RUNNER_TOKEN": TOKEN},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=2)
            break
        except httpx.HTTPError:
            time.sleep(0.2)
    yield f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    process.wait(30)


async def test_a_runner_elsewhere_embeds_for_those_who_show_its_token(start: Start, runner_url: str) -> None:
    gateway = start(LLM_LLAMACPP_URL=runner_url, LLM_RUNNER_TOKEN=TOKEN, LLM_RATE_LIMIT_RPS="0")

    answers = await ask_all(gateway.base_url, [f"text {i}" for i in range(64)], clients=16)
    async with httpx.AsyncClient(trust_env=False) as stranger:
        pickled = await stranger.post(
            f"{runner_url}/embed",
            content=b"\x80\x04K\x01.",
            headers={"Content-Type": "application/vnd.bentoml+pickle"},
        )

    assert all(len(vector_of(answer)) == 384 for answer in answers)
    assert pickled.status_code == 401
