"""The gateway in one container, llama.cpp runners in others, in a network of their own without a way out."""

from __future__ import annotations

import concurrent.futures
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.images.conftest import BASE_URL, MODEL, Container, Start, docker, skip_if_busy
from tests.images.test_process_death import BACK_WITHIN_S, Stream, story, wait_for

TOKEN = "runner-token-1"
PORT = 14011
NUM_REQUESTS = 200


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    name = f"llm-inference-test-{os.getpid()}"
    docker("network", "create", "--internal", name)
    yield name
    # Containers are removed at the session's end; until then Docker keeps the network, so they leave it first.
    members = "{{range $id, $_ := .Containers}}{{$id}} {{end}}"
    for container in docker("network", "inspect", "--format", members, name).split():
        docker("network", "disconnect", "--force", name, container)
    docker("network", "rm", name)


def _runner(start: Start, network: str, alias: str) -> Container:
    runner = start(
        *("--network-alias", alias, "--workdir", "/home/bentoml/bento/src"),
        *("--env", f"LLM_RUNNER_TOKEN={TOKEN}"),
        # Two engines that both take every core, and spin while they wait for each other, get nothing done.
        *("--env", "LLM_ARGS__LLAMACPP__N_THREADS=1", "--env", "OMP_WAIT_POLICY=passive"),
        wait=False,
        network=network,
        command=["bentoml", "serve", "service:LlamaCppRunner", "--timeout-graceful-shutdown", "30"],
    )
    wait_for("the runner", lambda: _health(runner) is not None, 240)
    return runner


def _health(runner: Container) -> dict[str, Any] | None:
    """What the runner says of itself; None while it does not answer."""
    try:
        with runner.network():
            answer = httpx.get(
                f"{BASE_URL}/health",
                headers={"Authorization": f"Bearer {TOKEN}"},
                timeout=2,
                trust_env=False,
            )
            found: dict[str, Any] = answer.json()
            return found
    except (httpx.HTTPError, OSError):
        return None


def _state(runner: Container) -> str:
    health = _health(runner) or {}
    return next((model["state"] for model in health.get("models", ()) if model["id"] == MODEL), "unloaded")


def _cpu_s(runner: Container) -> float:
    """Processor time of all its processes."""
    pids = [line.split()[0] for line in docker("top", runner.id, "-eo", "pid").splitlines()[1:]]
    ticks = 0
    for pid in pids:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def runners(start: Start, network: str) -> list[Container]:
    return [_runner(start, network, "runners"), _runner(start, network, "runners")]


@pytest.fixture(scope="module")
def gateway(start: Start, network: str, runners: list[Container]) -> Container:
    return start(
        *("--env", f"LLM_LLAMACPP_URL=http://runners:{PORT}", "--env", f"LLM_RUNNER_TOKEN={TOKEN}"),
        *("--env", "LLM_RATE_LIMIT_RPS=0", "--env", "LLM_MAX_CONCURRENT_COMPLETIONS=16"),
        network=network,
    )


def test_two_runners_share_the_load(gateway: Container, runners: list[Container]) -> None:
    before = [_cpu_s(runner) for runner in runners]
    with gateway.network(), httpx.Client(base_url=BASE_URL, timeout=120, trust_env=False) as client:

        def ask(number: int) -> int:
            body = story(1, f"What is {number} plus {number}?") | {"stream": False}
            return client.post("/v1/chat/completions", json=body).status_code

        # Threads of this test: they are in the gateway's network, as the thread that starts them is.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(ask, range(NUM_REQUESTS)))
    spent = [_cpu_s(runner) - was for runner, was in zip(runners, before, strict=True)]
    shares = [seconds / sum(spent) for seconds in spent]

    print(f"shares of the processor time: {shares[0]:.0%} and {shares[1]:.0%}")
    assert statuses == [200] * NUM_REQUESTS
    assert all(0.35 <= share <= 0.65 for share in shares)


def test_unload_and_load_reach_both(gateway: Container, runners: list[Container]) -> None:
    body = {"model": MODEL, "backend": "llamacpp"}
    with gateway.network(), httpx.Client(base_url=BASE_URL, timeout=60, trust_env=False) as client:
        client.post("/v1/models/unload", json=body).raise_for_status()
    unloaded = [_state(runner) for runner in runners]
    with gateway.network(), httpx.Client(base_url=BASE_URL, timeout=60, trust_env=False) as client:
        client.post("/v1/models/load", json=body).raise_for_status()
    loaded = [_state(runner) for runner in runners]

    assert unloaded == ["unloaded", "unloaded"]
    assert loaded == ["loaded", "loaded"]


def test_a_runner_in_a_container_of_its_own_refuses_strangers(runners: list[Container]) -> None:
    with runners[0].network():
        status = httpx.post(f"{BASE_URL}/generate", content=b"x", timeout=5, trust_env=False).status_code

    assert status == 401


def test_a_killed_runner_container_is_missed_and_taken_back(start: Start, network: str) -> None:
    """One runner: its streams end with an error frame, new requests get 503 with Retry-After, and within ten seconds of
    its restart there is a token again."""
    name = re.sub(r"\W", "", network) + "alone"
    runner = _runner(start, network, name)
    gateway = start(
        *("--env", f"LLM_LLAMACPP_URL=http://{name}:{PORT}", "--env", f"LLM_RUNNER_TOKEN={TOKEN}"),
        *("--env", "LLM_RATE_LIMIT_RPS=0", "--env", "LLM_MAX_CONCURRENT_COMPLETIONS=16"),
        network=network,
    )
    short = story(2) | {"stream": False}
    with gateway.network(), httpx.Client(base_url=BASE_URL, timeout=60, trust_env=False) as client:
        streams = [Stream(story(prompt=f"Tell me long story number {number}.")) for number in range(8)]
        wait_for("eight streams with text", lambda: all(stream.text for stream in streams))
        docker("kill", runner.id)
        for stream in streams:
            stream.join(60)
        missed = client.post("/v1/chat/completions", json=short)
        health = client.get("/health")
        docker("start", runner.id)
        started_at = time.monotonic()
        back_s = None
        while back_s is None and time.monotonic() - started_at < 3 * BACK_WITHIN_S:
            if client.post("/v1/chat/completions", json=short).status_code == 200:
                back_s = time.monotonic() - started_at
            else:
                time.sleep(0.1)

    print(f"back {back_s} s after the container's start")
    assert all('"error"' in stream.lines[-2] and stream.lines[-1] == "data: [DONE]" for stream in streams)
    assert missed.status_code == 503
    assert "retry-after" in missed.headers
    assert health.status_code == 200
    assert back_s is not None
    if back_s > BACK_WITHIN_S:
        skip_if_busy()
    assert back_s <= BACK_WITHIN_S
