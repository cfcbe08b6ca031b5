"""The clients that people use, unmodified, against a running service.

`make test-clients` sets up the clients' own environment and names the interpreter that has the service in
TEST_SERVICE_PYTHON. Each module is one client, which `CLIENT` names; each test reads as that client's own quick start.
The fixture a test takes is the engine it talks to, and `tests.clients.table` makes the README's table of both.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import Instance, started

HERE = Path(__file__).parent
NODE_TIMEOUT_S = 60
# Where the clients are not installed, there is nothing to collect.
collect_ignore_glob = [] if find_spec("langchain_openai") else ["test_*.py", "*/test_*.py"]

OFF_SWITCHES = {
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LLM_USER_PATH": "",
    "OPENAI_API_KEY": "",
    "NO_PROXY": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Served:
    """Where a model is: what any client of OpenAI's API asks for."""

    base_url: str
    model: str


RunNode = Callable[[str, Served], Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for name in ("clients", "serve", "engine"):
                item.add_marker(name)
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Both engines behind one address."""
    settings = {"LLM_ENABLED_BACKENDS": "llamacpp,fake", "LLM_RATE_LIMIT_RPS": "0"}
    yield from started(tmp_path_factory, "clients", settings)


@pytest.fixture
def llamacpp(service: Instance) -> Served:
    return Served(f"{service.base_url}/v1", "smollm2-135m-instruct")


@pytest.fixture
def embedder(service: Instance) -> Served:
    """Vectors, on llama.cpp."""
    return Served(f"{service.base_url}/v1", "all-minilm-l6-v2")


@pytest.fixture
def fake(service: Instance) -> Served:
    """The backend without an engine: it calls the tool that a message names, makes an instance of any schema, and says
    what it was told."""
    return Served(f"{service.base_url}/v1", "fake-echo")


@pytest.fixture(scope="session")
def tight_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    settings = {
        "LLM_RATE_LIMIT_RPS": "2",
        "LLM_RATE_LIMIT_BURST": "3",
        "LLM_MAX_CONCURRENT_COMPLETIONS": "1",
    }
    yield from started(tmp_path_factory, "tight", settings)


@pytest.fixture
def tight(tight_instance: Instance) -> Served:
    """A service that lets few requests in."""
    return Served(f"{tight_instance.base_url}/v1", "smollm2-135m-instruct")


@pytest.fixture(autouse=True)
def no_internet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test whose client looks for any other host than this one."""
    for name, value in OFF_SWITCHES.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    sought: list[object] = []
    resolve = socket.getaddrinfo

    def local_only(host: Any, *args: Any, **options: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", "::1", None):
            sought.append(host)
            raise socket.gaierror(f"the tests know no host {host!r}")
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", local_only)
    yield
    assert not sought


@pytest.fixture
def run_node() -> RunNode:
    """`run_node("openai/chat.mjs", served)` gives the JSON that the script printed last."""
    node = shutil.which("node")
    if node is None or not (HERE / "node" / "node_modules").is_dir():
        pytest.skip("needs Node 20 and npm: make test-clients installs what the scripts import")

    def run(script: str, served: Served) -> Any:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        done = subprocess.run(
            [node, script],
            cwd=HERE / "node",
            env=environment | {"BASE_URL": served.base_url, "MODEL": served.model},
            capture_output=True,
            text=True,
            timeout=NODE_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
