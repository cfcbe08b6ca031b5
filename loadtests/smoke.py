"""The service, started, loaded for a minute and stopped: what CI runs.

First the backend without a model, with every kind of user at once: does each answer keep the protocol? Then a small
real model for a while: does it stream, evenly, and stay responsive? All bounds are ratios: they hold on any machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from loadtests.connection import Connection, TransportFailed
from loadtests.report import Report
from loadtests.run import Options, run_workload
from loadtests.target import PREFIX, TargetError
from loadtests.workload import load_workload

ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0
STOP_S = 20.0
TOKEN, LIMITED_TOKEN = "smoke-load", "smoke-over-limit"
PARTS = (
    ("smoke-protocol", {"MODEL": "fake-echo", "EMBEDDING_MODEL": "fake-embeddings", "QUANTISATION": "none"}),
    ("smoke-model", {"MODEL": "smollm2-135m-instruct", "QUANTISATION": "Q4_1"}),
)


def smoke(*, python: str, out: Path) -> list[Report]:
    """A report per part. `python` has bentoml. Raises: TargetError, with the end of the service's log."""
    out.mkdir(parents=True, exist_ok=True)
    reports = []
    with service(python, out) as host:
        for name, settings in PARTS:
            told = {"TOKEN": TOKEN, "OVER_LIMIT_TOKEN": LIMITED_TOKEN, **settings}
            environment = {PREFIX + key: value for key, value in told.items()}
            print(f"\n== {name}", flush=True)
            options = Options(host=host, out=out / name, environment=environment)
            reports.append(run_workload(name, load_workload(name), options))
            if reports[-1].is_interrupted:
                break
    return reports


def principals() -> dict[str, object]:
    """One caller without a limit of his own, and one with a low one: he must not spend what the others need."""
    rows = (
        (TOKEN, "load", {"rps": 0, "max_concurrent": 64}),
        (LIMITED_TOKEN, "over-limit", {"rps": 5, "burst": 10}),
    )
    return {
        "principals": [
            {"name": name, "token_sha256": hashlib.sha256(token.encode()).hexdigest(), "limits": limits}
            for token, name, limits in rows
        ]
    }


@contextmanager
def service(python: str, out: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """`bentoml serve .` on a free port of the loopback; its address. Stopped with all that it started."""
    folder = (out / "service").resolve()
    (folder / "bentoml").mkdir(parents=True, exist_ok=True)
    (folder / "principals.json").write_text(json.dumps(principals()), encoding="utf-8")
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
        "LLM_DEFAULT_BACKEND": "llamacpp",
        "LLM_ENABLED_BACKENDS": "llamacpp,fake",
        "LLM_MAX_CONCURRENT_COMPLETIONS": "64",
        "LLM_PRINCIPALS_FILE": str(folder / "principals.json"),
        "LLM_STATE_DIR": str(folder / "state"),
        # Client and service share the cores: an engine thread that waits must not spin.
        "OMP_WAIT_POLICY": "passive",
        **(settings or {}),
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
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(process)


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
