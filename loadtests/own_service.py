"""A service of this checkout for as long as a load lasts: `bentoml serve .` on a free port of the loopback."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from loadtests.connection import Connection, TransportFailed
from loadtests.target import TargetError

ROOT = Path(__file__).resolve().parents[1]
START_S = 240.0
"""Longer than a start takes on a machine that is busy with ten other things."""
STOP_S = 20.0
TOKEN, LIMITED_TOKEN = "smoke-load", "smoke-over-limit"
NO_LIMIT: Mapping[str, Any] = {"rps": 0, "max_concurrent": 64}


@dataclass(frozen=True, slots=True)
class OwnService:
    """One that runs."""

    host: str
    pid: int

    def memory_mib(self) -> float:
        """Resident, of all its processes together: pages that they share count in each."""
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
        return total / 2**20


def principals(limits: Mapping[str, Any] = NO_LIMIT) -> dict[str, object]:
    """One caller with these limits of his own, and one with a low one: he must not spend what the others need."""
    rows = ((TOKEN, "load", dict(limits)), (LIMITED_TOKEN, "over-limit", {"rps": 1, "burst": 3}))
    return {
        "principals": [
            {"name": name, "token_sha256": hashlib.sha256(token.encode()).hexdigest(), "limits": own}
            for token, name, own in rows
        ]
    }


@contextmanager
def own_service(
    python: str, folder: Path, settings: Mapping[str, str], limits: Mapping[str, Any] = NO_LIMIT
) -> Iterator[OwnService]:
    """With exactly these LLM_* variables, beside those that keep its files in `folder`. Stopped with all that it
    started. `python` has bentoml; `limits` are those of the caller `TOKEN`, none for the service's own.

    Raises: TargetError, with the end of the service's log.
    """
    folder = folder.resolve()
    (folder / "bentoml").mkdir(parents=True, exist_ok=True)
    (folder / "principals.json").write_text(json.dumps(principals(limits)), encoding="utf-8")
    port, log = _free_port(), folder / "service.log"
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLM_", "BENTOML_", "PROMETHEUS_"))
    }
    environment = {
        **inherited,
        "BENTOML_HOME": str(folder / "bentoml"),
        "BENTOML_DO_NOT_TRACK": "True",
        "LLM_PRINCIPALS_FILE": str(folder / "principals.json"),
        "LLM_STATE_DIR": str(folder / "state"),
        **settings,
    }
    command = [python, "-m", "bentoml", "serve", ".", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as told:
        process = subprocess.Popen(
            [*command, "--timeout-graceful-shutdown", "5"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
        yield OwnService(f"http://127.0.0.1:{port}", process.pid)
    finally:
        _stop(process)


def first_answer(service: OwnService, model: str) -> None:
    """Ask for one token, so that the model is loaded when the load begins. Raises: TargetError."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connection = Connection(service.host, timeout_s=START_S)
    try:
        reply = connection.send("POST", "/v1/chat/completions", body=body.encode(), headers=headers)
        said = reply.read()
    except TransportFailed as failure:
        raise TargetError(f"{model} gives no first answer: {failure.detail}") from None
    finally:
        connection.close()
    if reply.status != 200:
        raise TargetError(f"{model} gives no first answer: {reply.status} {said[:200]!r}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        connection = Connection(host, timeout_s=2)
        try:
            reply = connection.send("GET", "/ready", body=None, headers={})
            reply.read()
            if reply.status == 200:
                return
        except TransportFailed:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
    raise TargetError(f"the service did not become ready; its log ends with\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
