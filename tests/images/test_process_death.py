"""Processes that die inside the container, and the container's own end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import Any

import httpx
import pytest

from tests.images.conftest import BASE_URL, MODEL, Container, Start, skip_if_busy

BACK_WITHIN_S = 10.0
DRAIN_S = 25
"""What running requests are given (LLM_DRAIN_TIMEOUT_S), as it is shipped."""


def story(max_tokens: int = 400, prompt: str = "Tell me a long story.") -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": MODEL, "stream": True, "max_tokens": max_tokens, "messages": messages}


class Stream(threading.Thread):
    """One streamed answer, read in a thread of its own, which is inside the container's network from its start."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.body = body
        self.text = ""
        self.lines: list[str] = []
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream(
                "POST", f"{BASE_URL}/v1/chat/completions", json=self.body, timeout=180, trust_env=False
            ) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.lines.append(line)
                    if line.startswith('data: {"id"'):
                        for choice in json.loads(line[6:])["choices"]:
                            self.text += choice["delta"].get("content") or ""
        except httpx.HTTPError as error:
            self.failure = error


def wait_for(what: str, condition: Any, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s for {what}", pytrace=False)
        time.sleep(0.02)


@pytest.fixture
def fresh(start: Start) -> Container:
    return start("--env", "LLM_RATE_LIMIT_RPS=0", "--env", "LLM_MAX_CONCURRENT_COMPLETIONS=16")


def test_a_killed_runner_comes_back_and_takes_no_gateway_along(fresh: Container) -> None:
    """Under eight streams: each ends with an error it can read, `/health` keeps answering, new requests are told to
    come again, and the next token comes within ten seconds."""
    before = fresh.processes()
    with fresh.network(), httpx.Client(base_url=BASE_URL, timeout=20, trust_env=False) as client:
        streams = [Stream(story(prompt=f"Tell me long story number {number}.")) for number in range(8)]
        wait_for("eight streams with text", lambda: all(stream.text for stream in streams))
        os.kill(before["LlamaCppRunner"], signal.SIGKILL)
        killed_at = time.monotonic()
        for stream in streams:
            stream.join(60)
        refusals, health, back_s = [], [], None
        while back_s is None and time.monotonic() - killed_at < 3 * BACK_WITHIN_S:
            health.append(client.get("/health").status_code)
            again = client.post(
                "/v1/chat/completions",
                json=story(4) | {"stream": False},
                timeout=20,
            )
            if again.status_code == 200:
                back_s = time.monotonic() - killed_at
            else:
                refusals.append((again.status_code, "retry-after" in again.headers))
                time.sleep(0.1)
    after = fresh.processes()

    print(f"runner back after {back_s} s; refused meanwhile: {len(refusals)}")
    assert [stream.failure for stream in streams] == [None] * 8
    assert all('"error"' in stream.lines[-2] and stream.lines[-1] == "data: [DONE]" for stream in streams)
    assert set(refusals) <= {(503, True)}
    assert set(health) == {200}
    assert back_s is not None
    if back_s > BACK_WITHIN_S:
        skip_if_busy()
    assert back_s <= BACK_WITHIN_S
    assert after["Gateway"] == before["Gateway"]
    assert after["LlamaCppRunner"] != before["LlamaCppRunner"]


def test_sigterm_lets_a_running_stream_finish_and_ends_with_zero(fresh: Container) -> None:
    with fresh.network():
        stream = Stream(story(48))
        wait_for("the first text", lambda: stream.text)
        began = time.monotonic()
        code = fresh.stop()
        took_s = time.monotonic() - began
        stream.join(10)

    print(f"stopped after {took_s:.1f} s")
    if took_s > DRAIN_S:
        skip_if_busy()
    assert stream.failure is None
    assert stream.lines[-1] == "data: [DONE]"
    assert not any('"error"' in line for line in stream.lines)
    assert code == 0


def test_an_idle_container_stops_at_once_with_zero(fresh: Container) -> None:
    began = time.monotonic()
    code = fresh.stop()

    print(f"stopped after {time.monotonic() - began:.1f} s")
    assert code == 0
    assert time.monotonic() - began < 10


def test_without_a_default_backend_it_says_so_and_ends(start: Start) -> None:
    container = start("--env", "LLM_DEFAULT_BACKEND=", wait=False)
    wait_for("the end", lambda: not container.inspect()["State"]["Running"])

    assert container.inspect()["State"]["ExitCode"] == 2
    assert "LLM_DEFAULT_BACKEND is not set" in container.log(stderr=True)
