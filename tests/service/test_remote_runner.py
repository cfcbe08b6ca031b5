"""A runner on its own, reached by URL over TCP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.conftest import ROOT, Instance
from tests.service.conftest import Start

TOKEN = "runner-token-1"


def _serve_runner(home: Path, port: int, **settings: str) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LLM_", "BENTOML_"))
    }
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "bentoml", "serve", "service:FakeRunner", "--port", str(port)],
            cwd=ROOT,
            env=environment
            | {"BENTOML_HOME": str(home), "BENTOML_DO_NOT_TRACK": "True", "LLM_DEFAULT_BACKEND": "fake"}
            | settings,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.fixture
def runner_port(tmp_path: Path) -> Iterator[int]:
    port = Instance.free_port()
    process = _serve_runner(tmp_path, port, LLM_RUNNER_TOKEN=TOKEN)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=2)
            break
        except httpx.HTTPError:
            time.sleep(0.2)
    yield port
    process.send_signal(signal.SIGTERM)
    process.wait(20)


def test_a_runner_over_tcp_serves_a_gateway_with_its_token_and_nobody_without(
    start: Start, runner_port: int
) -> None:
    url = f"http://127.0.0.1:{runner_port}"
    gateway = start(LLM_DEFAULT_BACKEND="fake", LLM_ARGS__FAKE__URL=url, LLM_RUNNER_TOKEN=TOKEN)

    answer = httpx.post(
        f"{gateway.base_url}/v1/chat/completions",
        json={"model": "fake-echo", "messages": [{"role": "user", "content": "over the wire"}]},
        timeout=30,
    )
    strangers = [
        httpx.post(f"{url}/generate", content=b"x", headers=headers).status_code
        for headers in ({}, {"Authorization": "Bearer wrong"})
    ]

    assert answer.json()["choices"][0]["message"]["content"] == "over the wire"
    assert strangers == [401, 401]


def test_a_runner_without_a_token_does_not_listen_to_other_machines(tmp_path: Path) -> None:
    process = _serve_runner(tmp_path, Instance.free_port(), BENTOML_HOST="0.0.0.0")  # noqa: S104

    code = process.wait(30)

    assert code != 0
    assert "needs LLM_RUNNER_TOKEN" in (tmp_path / "log").read_text()
