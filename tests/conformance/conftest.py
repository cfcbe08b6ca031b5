"""Starts the service for the checks of openai_compat/conformance, or points them at a server that runs already.

    pytest tests/conformance                                starts what is needed, with the shipped model
    pytest tests/conformance --base-url URL --model ID      tries any server; --token TOKEN if it wants one
    pytest tests/conformance … -m "not ours"                only what any OpenAI-compatible server should do

`python -m openai_compat conformance` does the second without pytest and prints a table.

`service` is open and has wide rate limits, `guarded` has tokens and every limit at its default, `small` a context
that a test can fill. Each starts when a test first asks for it and is stopped by its process id at the end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from openai_compat.conformance.api import Api

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
TOKEN = "Conform-Token-1"
LIMITS_TOKEN = "limits-token-2"
START_TIMEOUT_S = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance tests against a running server")
    group.addoption("--base-url", default=None, help="a server that runs already, without /v1")
    group.addoption("--model", default=None, help="the model to ask it for")
    group.addoption("--token", default=None, help="its bearer token, if it wants one")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ours: asked for by this service's contract, not by OpenAI compatibility"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for name in ("conformance", "serve", "engine"):
                item.add_marker(name)


class Instance:
    """One `bentoml serve .` as a subprocess, in a session of its own, with a home of its own.

    TEST_SERVICE_PYTHON names the interpreter that has the service, where the tests run in another environment.
    """

    def __init__(self, home: Path, settings: dict[str, str]) -> None:
        self.port = self.free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.log = home / "service.log"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LLM_", "BENTOML_", "PROMETHEUS_")) and name != "PORT"
        }
        environment = inherited | {
            "BENTOML_HOME": str(home / "bentoml"),
            "BENTOML_DO_NOT_TRACK": "True",
            "LLM_DEFAULT_BACKEND": "llamacpp",
            # The instances and the tests share the cores: an engine thread that waits must not spin.
            "OMP_WAIT_POLICY": "passive",
        }
        (home / "bentoml").mkdir()
        command = [
            os.environ.get("TEST_SERVICE_PYTHON", sys.executable),
            "-m",
            "bentoml",
            "serve",
            ".",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--timeout-graceful-shutdown", "5"],
                cwd=ROOT,
                env=environment | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @staticmethod
    def free_port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        return port

    def wait_until_ready(self) -> None:
        """Until `/ready` says so. Fails with the end of the log if it ends first or never gets there."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.base_url}/ready", timeout=2, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self.stop()
        tail = self.log.read_text(errors="replace").splitlines()[-40:]
        pytest.fail(
            "\n".join(["the service did not become ready; the end of its log:", *tail]), pytrace=False
        )

    def stop(self) -> None:
        """SIGTERM to the process, and SIGKILL to its session if it does not end within 20 s."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def started(factory: pytest.TempPathFactory, name: str, settings: dict[str, str]) -> Iterator[Instance]:
    instance = Instance(factory.mktemp(name), settings)
    try:
        instance.wait_until_ready()
        yield instance
    finally:
        instance.stop()


def option(request: pytest.FixtureRequest, name: str) -> str | None:
    value = request.config.getoption(name, default=None)
    assert value is None or isinstance(value, str)
    return value


@pytest.fixture(scope="session")
def open_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """No tokens, rate limits out of the way, everything else at its default."""
    yield from started(
        tmp_path_factory, "open", {"LLM_RATE_LIMIT_RPS": "1000", "LLM_RATE_LIMIT_BURST": "1000"}
    )


@pytest.fixture(scope="session")
def guarded_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Two tokens and every limit at its default; each token has a bucket of its own."""
    yield from started(tmp_path_factory, "guarded", {"LLM_API_TOKENS": f"{TOKEN},{LIMITS_TOKEN}"})


@pytest.fixture(scope="session")
def service(request: pytest.FixtureRequest) -> Iterator[Api]:
    """The server under test, asked with a token if one was given."""
    base_url = option(request, "--base-url")
    if base_url is None:
        api = Api(request.getfixturevalue("open_instance").base_url, MODEL)
    else:
        api = Api(base_url.rstrip("/"), option(request, "--model") or MODEL, option(request, "--token"))
    with api.http:
        yield api


@pytest.fixture(scope="session")
def guarded(request: pytest.FixtureRequest) -> Iterator[Api]:
    """A server that wants a token, asked with the right one."""
    base_url, token = option(request, "--base-url"), option(request, "--token")
    if base_url is not None and token is None:
        pytest.skip("needs --token")
    if base_url is None:
        api = Api(request.getfixturevalue("guarded_instance").base_url, MODEL, TOKEN)
    else:
        api = Api(base_url.rstrip("/"), option(request, "--model") or MODEL, token)
    with api.http:
        yield api


@pytest.fixture(scope="session")
def limited(request: pytest.FixtureRequest) -> Iterator[Api]:
    """A server with the default rate limit, asked with a token that no other test spends."""
    if option(request, "--base-url") is not None:
        pytest.skip("needs a server with the default limits of this service")
    api = Api(request.getfixturevalue("guarded_instance").base_url, MODEL, LIMITS_TOKEN)
    with api.http:
        yield api


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server whose context a test can fill in seconds (with --base-url: that server as it is)."""
    if option(request, "--base-url") is not None:
        yield request.getfixturevalue("service")
        return
    for instance in started(tmp_path_factory, "small", {"LLM_ARGS__LLAMACPP__N_CTX": "1024"}):
        api = Api(instance.base_url, MODEL)
        with api.http:
            yield api


@pytest.fixture(scope="session")
def sdk(service: Api) -> Iterator[openai.OpenAI]:
    """The unmodified SDK, which tries nothing twice."""
    key = service.token or "not-needed"
    with openai.OpenAI(base_url=f"{service.base_url}/v1", api_key=key, max_retries=0, timeout=120) as client:
        yield client
