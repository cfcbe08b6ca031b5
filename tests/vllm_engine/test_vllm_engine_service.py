"""vLLM through a real `bentoml serve`: the official client, loads and unloads, deaths, and what cannot be served.

An engine takes some 20 s to start, so the tests share one service and are in the order of what they do to it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.conformance.conftest import ROOT, Instance
from tests.vllm_engine.conftest import CARD_ARGS

MODEL = "tiny"


@pytest.fixture(scope="module")
def instance(vllm_python: str, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    home = tmp_path_factory.mktemp("service")
    catalogue = home / "catalogue.yaml"
    catalogue.write_text(json.dumps({"models": cards(weights, home)}))
    settings = {
        "LLM_DEFAULT_BACKEND": "vllm",
        # A second backend, so that one ill backend makes the service degraded and not unhealthy.
        "LLM_ENABLED_BACKENDS": "vllm,fake",
        "LLM_CATALOGUE": str(catalogue),
        "LLM_RATE_LIMIT_RPS": "0",
        "LLM_LOAD_WAIT_S": "280",
        "LLM_API_TOKENS": "a-secret-of-the-service",
        "LLM_ARGS__VLLM__PYTHON": vllm_python,
        "LLM_ARGS__VLLM__KV_CACHE_SPACE_GIB": "0.25",
        "LLM_ARGS__VLLM__MAX_NUM_SEQS": "8",
        "LLM_ARGS__VLLM__MAX_MODEL_LEN": "2048",
        "OPENAI_API_KEY": "a-secret-of-a-cloud",
    }
    instance = Instance(home, settings)
    try:
        instance.wait_until_ready()
        yield instance
        left = engines(instance)
    finally:
        instance.stop()
    assert not any(map(is_alive, left))


def cards(weights: Path, home: Path) -> list[dict[str, Any]]:
    """The model, and four that cannot be served: no weights, an unknown architecture, no folder, too little memory."""
    config = json.loads((weights / "config.json").read_text())
    for name, change in (
        ("hollow", {}),
        ("alien", {"architectures": ["AlienForCausalLM"], "model_type": "alien"}),
    ):
        folder = home / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        for file in weights.iterdir():
            if file.name != "config.json" and (name == "alien" or file.suffix != ".safetensors"):
                (folder / file.name).symlink_to(file)
    eager = {"extra_args": list(CARD_ARGS)}
    tight = {"extra_args": [*CARD_ARGS, "--kv-cache-memory-bytes=1000000"], "gpu_memory_utilization": 0.001}
    return [
        {"id": MODEL, "aliases": ["gpt-tiny"], "sources": {"vllm": {"path": str(weights)}}, "vllm": eager},
        {"id": "hollow", "sources": {"vllm": {"path": str(home / "hollow")}}, "vllm": eager},
        {"id": "alien", "sources": {"vllm": {"path": str(home / "alien")}}, "vllm": eager},
        {"id": "nowhere", "sources": {"vllm": {"path": str(home / "nowhere")}}, "vllm": eager},
        {"id": "tight", "sources": {"vllm": {"path": str(weights)}}, "vllm": tight},
    ]


@pytest.fixture(scope="module")
def http(instance: Instance) -> Iterator[httpx.Client]:
    headers = {"authorization": "Bearer a-secret-of-the-service"}
    with httpx.Client(base_url=instance.base_url, headers=headers, timeout=300, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(instance: Instance) -> Iterator[openai.OpenAI]:
    key = "a-secret-of-the-service"
    with openai.OpenAI(base_url=f"{instance.base_url}/v1", api_key=key, max_retries=0, timeout=300) as client:
        yield client


def engines(instance: Instance) -> list[psutil.Process]:
    """Every process of vLLM below this service, its servers first."""
    found = []
    for process in psutil.Process(instance.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            words = process.cmdline() or [""]
            is_server = any(word.endswith("vllm/guard.py") for word in words)
            if (is_server or words[0].startswith("VLLM::")) and is_alive(process):
                found.append(process)
    return sorted(found, key=lambda process: process.cmdline()[0].startswith("VLLM::"))


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def shared_memory_of(processes: list[psutil.Process]) -> set[Path]:
    """Their queues: files that would outlive them."""
    return {
        Path(mapped.path)
        for process in processes
        for mapped in process.memory_maps()
        if mapped.path.startswith("/dev/shm/psm_")  # noqa: S108 - looked at, not written
    }


def control(http: httpx.Client, what: str, model: str = MODEL) -> httpx.Response:
    return http.post(f"/v1/models/{what}", json={"model": model, "backend": "vllm"})


def loaded(http: httpx.Client, model: str = MODEL) -> bool:
    listed = http.get("/v1/models", params={"backend": "vllm"}).json()["data"]
    return next(bool(entry["loaded"]) for entry in listed if entry["id"] == model)


def until(condition: Callable[[], bool], patience_s: float) -> float:
    """Seconds until it holds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < patience_s
        time.sleep(0.05)
    return time.monotonic() - begun


def test_the_models_are_listed_before_anything_is_loaded(http: httpx.Client, instance: Instance) -> None:
    assert not loaded(http)
    assert engines(instance) == []


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("nowhere", 404, "does not exist"),
        ("hollow", 422, "holds no weights"),
        ("alien", 422, "architecture"),
        ("tight", 503, "memory"),
    ],
)
def test_what_cannot_be_served_is_answered_with_the_reason_in_one_sentence(
    http: httpx.Client, instance: Instance, model: str, status: int, words: str
) -> None:
    answer = control(http, "load", model)

    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert words in message.lower()
    assert "\n" not in message
    assert ". " not in message
    assert "/" not in message.replace("b/s", "")
    assert engines(instance) == []


def test_a_load_starts_an_engine_and_shows_its_context(http: httpx.Client) -> None:
    answer = control(http, "load")

    assert answer.status_code == 200, answer.text
    assert answer.json()["success"] is True
    entry = next(e for e in http.get("/v1/models").json()["data"] if e["id"] == MODEL)
    assert (entry["loaded"], entry["context_length"]) == (True, 2048)


def test_the_official_client_gets_an_answer(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="gpt-tiny",
        messages=[{"role": "user", "content": "Say something about rivers."}],
        max_tokens=12,
        temperature=0,
    )

    assert answer.model == MODEL
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 12


def test_the_official_clients_stream_is_its_answer_with_usage_last(sdk: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count to five."}],
        "max_tokens": 16,
        "temperature": 0,
    }
    whole = sdk.chat.completions.create(**wanted)
    chunks = list(sdk.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}))

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_legacy_route_and_its_log_probabilities(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=5, temperature=0, logprobs=2
    )

    assert answer.choices[0].text
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or ()) == 5


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_receipt_names_the_weights_and_an_idle_engine_repeats_the_text(
    http: httpx.Client, instance: Instance, weights: Path, tmp_path: Path, temperature: float
) -> None:
    body = {
        "model": "gpt-tiny",
        "messages": [{"role": "user", "content": "Say something about rivers."}],
        "max_tokens": 16,
        "temperature": temperature,
        "receipt": True,
    }
    file = tmp_path / "answer.json"

    def answered() -> bool:
        file.write_text(http.post("/v1/chat/completions", json=body).raise_for_status().text)
        return json.loads(file.read_text())["llm_receipt"]["model"]["sha256"] is not None

    until(answered, 120)  # the first receipts may come before the weights are hashed
    receipt = json.loads(file.read_text())["llm_receipt"]
    command = [sys.executable, "-m", "openai_compat", "replay", str(file), "--base-url", instance.base_url]
    done = subprocess.run(
        [*command, "--api-key", "a-secret-of-the-service", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    (file_of_weights,) = weights.glob("*.safetensors")
    assert receipt["model"]["sha256"] == hashlib.sha256(file_of_weights.read_bytes()).hexdigest()
    assert receipt["engine"]["name"] == "vLLM"
    assert receipt["engine"]["version"]
    assert receipt["repeats"] == "likely"
    assert isinstance(receipt["sampling"]["seed"], int) is (temperature > 0)
    assert {"field": "chat_template_kwargs.enable_thinking", "from": None, "to": False} in receipt[
        "rewritten"
    ]
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_schema_is_met(sdk: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"river": {"type": "string", "maxLength": 12}, "long": {"type": "boolean"}},
        "required": ["river", "long"],
        "additionalProperties": False,
    }
    answer = sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name a river."}],
        max_tokens=80,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "r", "schema": schema, "strict": True},
        },
    )

    assert set(json.loads(answer.choices[0].message.content or "")) == {"river", "long"}


def test_a_prompt_that_is_too_long_is_named_with_its_numbers(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.completions.create(model=MODEL, prompt="word " * 3000, max_tokens=5)

    assert refused.value.code == "context_length_exceeded"
    assert "2048" in refused.value.message


def test_its_metrics_are_re_exported_and_its_log_is_ours_without_prompts(
    http: httpx.Client, instance: Instance
) -> None:
    http.post("/v1/completions", json={"model": MODEL, "prompt": "xylophone-in-a-prompt", "max_tokens": 2})
    metrics = http.get("/metrics").text
    log = instance.log.read_text()

    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"}' in metrics
    assert metrics.count("# TYPE vllm:generation_tokens_total ") == 1
    assert any("[INFO]" in line and f"{MODEL}: " in line for line in log.splitlines())
    assert "xylophone" not in log
    assert "it/s" not in log


def test_the_engine_holds_no_secret_of_ours(instance: Instance) -> None:
    for process in engines(instance):
        assert not [
            name for name in process.environ() if name.startswith("LLM_") or name.endswith("_API_KEY")
        ]


def test_an_unload_frees_everything_and_the_next_request_loads_again(
    http: httpx.Client, instance: Instance
) -> None:
    queues = shared_memory_of(engines(instance))
    assert queues
    assert control(http, "unload").status_code == 200

    assert engines(instance) == []
    assert not loaded(http)
    assert not any(path.exists() for path in queues)
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "max_tokens": 2})
    assert answer.status_code == 200, answer.text


def test_a_stream_whose_engine_is_killed_ends_with_an_error_and_the_model_comes_back(
    http: httpx.Client, instance: Instance
) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    killed_at = 0.0
    frames: list[str] = []
    with http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            frames.append(line)
            if len(frames) == 8:
                core = next(p for p in engines(instance) if p.cmdline()[0].startswith("VLLM::EngineCore"))
                core.kill()
                killed_at = time.monotonic()
    ended_s = time.monotonic() - killed_at
    health = http.get("/health").json()
    ready = http.get("/ready")

    said = [line for line in frames if line]
    assert ended_s < 2
    assert "error" in json.loads(said[-2].removeprefix("data: "))
    assert said[-1] == "data: [DONE]"
    assert health["status"] == "degraded"
    assert ready.status_code == 503
    until(lambda: http.get("/ready").status_code == 200, 200)
    again = http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "max_tokens": 2})
    assert again.status_code == 200
    assert http.get("/health").json()["status"] == "healthy"


def test_nothing_survives_a_killed_runner(instance: Instance) -> None:
    found = engines(instance)
    runner = found[0].parent()
    assert runner is not None
    runner.kill()

    until(lambda: not any(map(is_alive, found)), 5)
