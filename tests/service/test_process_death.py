"""A runner that is killed is replaced soon, in a container as elsewhere, and the gateway stays. A supervisor that is
killed takes its processes along."""

from __future__ import annotations

import os
import signal
import socket
import sys
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_the_processes_of_a_killed_supervisor_end_and_leave_the_port(start: Start) -> None:
    service = start(LLM_DEFAULT_BACKEND="fake")
    processes = psutil.Process(service.process.pid).children(recursive=True)

    os.kill(service.process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=20)

    assert len(processes) >= 2
    assert alive == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", httpx.URL(service.base_url).port or 0))
