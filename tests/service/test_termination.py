"""SIGTERM, and processes that die."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import httpx
import psutil
import pytest

from tests.conformance.conftest import Instance
from tests.service.conftest import Start

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m-instruct"
OPEN = {"LLM_RATE_LIMIT_RPS": "0", "LLM_DEFAULT_BACKEND": "llamacpp"}


def _body(max_tokens: int, *, stream: bool) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }


class _Stream(threading.Thread):
    """Reads one long stream in the background; `frames` are its data lines so far."""

    def __init__(self, instance: Instance, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.frames: list[str] = []
        self.began = threading.Event()
        self._url = f"{instance.base_url}/v1/chat/completions"
        self._body = _body(max_tokens, stream=True)
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=120) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.frames.append(line[6:])
                    if len(self.frames) > 3:
                        self.began.set()


def _runner(instance: Instance) -> psutil.Process:
    for process in psutil.Process(instance.process.pid).children(recursive=True):
        if "LlamaCppRunner" in " ".join(process.cmdline()) and "--fd" in process.cmdline():
            command = process.cmdline()
            if command[command.index("--service-name") + 1] == "LlamaCppRunner":
                return process
    raise AssertionError("no runner process")


def test_sigterm_refuses_new_work_finishes_streams_and_exits_with_0(start: Start) -> None:
    instance = start(**OPEN)
    stream = _Stream(instance, 200)
    assert stream.began.wait(30)

    instance.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 5
    ready = httpx.get(f"{instance.base_url}/ready", timeout=5)
    while ready.status_code == 200 and time.monotonic() < deadline:
        ready = httpx.get(f"{instance.base_url}/ready", timeout=5)
    refused = httpx.post(f"{instance.base_url}/v1/chat/completions", json=_body(2, stream=False), timeout=10)
    stream.join(60)
    code = instance.process.wait(30)

    assert ready.status_code == 503
    assert ready.json()["ready"] is False
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert stream.frames[-1] == "[DONE]"
    assert json.loads(stream.frames[-2])["choices"][0]["finish_reason"] == "length"
    assert code == 0


def test_a_stream_that_outlasts_the_drain_ends_with_an_error_and_the_service_stops(start: Start) -> None:
    instance = start(**OPEN, LLM_DRAIN_TIMEOUT_S="1")
    stream = _Stream(instance, 6000)
    assert stream.began.wait(30)

    instance.process.send_signal(signal.SIGTERM)
    stream.join(15)
    code = instance.process.wait(20)

    assert stream.frames[-1] == "[DONE]"
    assert json.loads(stream.frames[-2])["error"]["type"] == "server_error"
    assert code == 0


def test_a_killed_runner_ends_streams_with_an_error_and_comes_back(start: Start) -> None:
    instance = start(**OPEN)
    stream = _Stream(instance, 2000)
    assert stream.began.wait(30)

    os.kill(_runner(instance).pid, signal.SIGKILL)
    killed_at = time.monotonic()
    stream.join(10)
    ended_after_s = time.monotonic() - killed_at
    statuses: list[int] = []
    retry_after: list[str | None] = []
    while (not statuses or statuses[-1] != 200) and time.monotonic() - killed_at < 40:
        answer = httpx.post(
            f"{instance.base_url}/v1/chat/completions", json=_body(2, stream=False), timeout=30
        )
        statuses.append(answer.status_code)
        retry_after.append(answer.headers.get("retry-after"))
        time.sleep(0.2)

    assert stream.frames[-1] == "[DONE]"
    assert json.loads(stream.frames[-2])["error"]["type"] == "server_error"
    assert ended_after_s < 2
    assert statuses[-1] == 200
    assert set(statuses[:-1]) <= {503}
    assert all(value and int(value) >= 1 for value in retry_after[:-1])
    assert httpx.get(f"{instance.base_url}/health", timeout=5).status_code == 200


def test_clients_that_left_before_their_answer_do_not_hold_up_the_end(start: Start) -> None:
    instance = start(**OPEN)
    for _ in range(2):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{instance.base_url}/v1/chat/completions", json=_body(4000, stream=False), timeout=1)

    instance.process.send_signal(signal.SIGTERM)

    assert instance.process.wait(20) == 0
    assert "timeout graceful shutdown exceeded" not in instance.log.read_text()
