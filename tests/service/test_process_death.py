"""A runner that is killed is replaced soon, in a container as elsewhere, and the gateway stays."""

from __future__ import annotations

import os
import signal
import time

import httpx
import psutil
import pytest

from tests.service.conftest import Start


def _worker(supervisor: int, service: str) -> int:
    for process in psutil.Process(supervisor).children(recursive=True):
        words = process.cmdline()
        if "--service-name" in words and words[words.index("--service-name") + 1] == service:
            return int(process.pid)
    raise AssertionError(f"no process of {service}")


@pytest.mark.parametrize("environment", [{}, {"BENTOML_CONTAINERIZED": "true"}], ids=["host", "container"])
def test_a_killed_runner_is_back_within_ten_seconds(start: Start, environment: dict[str, str]) -> None:
    service = start(LLM_DEFAULT_BACKEND="fake", LLM_RATE_LIMIT_RPS="0", **environment)
    supervisor = service.process.pid
    runner, gateway = _worker(supervisor, "FakeRunner"), _worker(supervisor, "Gateway")
    body = {"model": "fake-echo", "messages": [{"role": "user", "content": "hello"}]}

    os.kill(runner, signal.SIGKILL)
    killed_at = time.monotonic()
    status = 0
    while status != 200 and time.monotonic() - killed_at < 30:
        status = httpx.post(f"{service.base_url}/v1/chat/completions", json=body, timeout=20).status_code
    back_s = time.monotonic() - killed_at

    assert status == 200
    assert back_s < 10
    assert _worker(supervisor, "Gateway") == gateway
    assert _worker(supervisor, "FakeRunner") != runner
