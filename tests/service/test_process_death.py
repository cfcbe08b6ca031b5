"""A runner that is killed is replaced soon, in a container as elsewhere, and the gateway stays. A supervisor that is
killed takes its processes along."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

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


@pytest.mark.engine
@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="what a shortened map does is the system's own")
def test_a_model_whose_file_is_cut_short_under_it_is_a_422_that_says_so(start: Start, tmp_path: Path) -> None:
    """Its pages are read from the file: the first that is missing ends the runner."""
    from tests.backends.shipped_model import gguf

    file = tmp_path / "mine.gguf"
    shutil.copy(gguf(), file)
    service = start(LLM_MODEL_DIRS=str(tmp_path), LLM_RATE_LIMIT_RPS="0", LLM_ARGS__LLAMACPP__N_THREADS="1")

    def status_and_text(words: str) -> tuple[int, str]:
        body = {"model": "mine", "messages": [{"role": "user", "content": words}], "max_tokens": 4}
        answer = httpx.post(f"{service.base_url}/v1/chat/completions", json=body, timeout=60)
        return answer.status_code, answer.text

    before, _ = status_and_text("hello")
    os.truncate(file, 20 << 20)
    status, text = 0, ""
    deadline = time.monotonic() + 60
    while status != 422 and time.monotonic() < deadline:
        status, text = status_and_text("something else, longer than before")
        time.sleep(0.2)

    assert (before, status) == (200, 422)
    assert "is truncated" in text


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
