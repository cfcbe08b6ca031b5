"""The load smoke fails when the service misbehaves: the real service and locust, with something broken between them.

Needs locust in an environment of its own, whose Python is in TEST_LOAD_PYTHON: `make load-smoke` says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from loadtests.own_service import LIMITED_TOKEN, TOKEN, own_service
from loadtests.record import Record, read_records
from loadtests.smoke import PARTS, SETTINGS
from tests.loadtests.breaking_proxy import broken

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TEST_LOAD_PYTHON")

pytestmark = [
    pytest.mark.load,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not PYTHON, reason="TEST_LOAD_PYTHON names no Python with locust"),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("smoke")
    with own_service(sys.executable, folder, {**SETTINGS, "LLM_DEFAULT_BACKEND": "fake"}) as service:
        yield service.host


def load(
    host: str, out: Path, *arguments: str, workload: str = "smoke-protocol"
) -> subprocess.CompletedProcess[str]:
    """`python -m loadtests run` for some seconds, as the smoke does it."""
    settings = {"TOKEN": TOKEN, "OVER_LIMIT_TOKEN": LIMITED_TOKEN, **PARTS[0][1]}
    command = [str(PYTHON), "-m", "loadtests", "run", workload, "--host", host, "--out", str(out), *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **{f"LOADTESTS_{name}": value for name, value in settings.items()}},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def failures(records: Sequence[Record]) -> set[str | None]:
    return {record.error for record in records if record.outcome == "failed"}


def test_nothing_fails_where_nothing_is_broken(host: str, tmp_path: Path) -> None:
    with broken(host, None) as proxy:
        told = load(proxy, tmp_path, "--duration", "6")

    run = json.loads((tmp_path / "run.json").read_text())
    assert failures(read_records(tmp_path / "records.jsonl")) == set(), told.stdout
    assert told.returncode == 0, told.stdout + told.stderr
    assert run["end"] - run["begin"] >= 6, "a run lasts as long as it says, however long starting took"


@pytest.mark.parametrize(
    ("how", "kind"), [("wrong-id", "changed-id"), ("no-done", "no-done"), ("errors", "500 backend_error")]
)
def test_smoke_fails_when_the_service_misbehaves(host: str, tmp_path: Path, how: str, kind: str) -> None:
    with broken(host, how) as proxy:
        told = load(proxy, tmp_path, "--duration", "6")

    assert told.returncode == 1, told.stdout + told.stderr
    assert "FAIL failed ÷ requests ≤ 0" in told.stdout
    assert failures(read_records(tmp_path / "records.jsonl")) == {kind}
    assert kind in (tmp_path / "report.html").read_text()


def test_several_processes_of_locust_report_as_one(host: str, tmp_path: Path) -> None:
    told = load(host, tmp_path, "--duration", "8", "--processes", "2")

    records = read_records(tmp_path / "records.jsonl")
    assert told.returncode == 0, told.stdout + told.stderr
    assert {record.user for record in records} >= {"chat_stream", "embedding", "over_limit"}
    assert "Client processes | 2" in (tmp_path / "report.md").read_text()


def test_open_loop_does_not_wait_for_answers(host: str, tmp_path: Path) -> None:
    told = load(host, tmp_path, "--duration", "8", workload="poisson-chat")

    records = read_records(tmp_path / "records.jsonl")
    assert told.returncode == 0, told.stdout + told.stderr
    assert 4 <= len(records) <= 32  # two a second; outside with a probability below 1e-3


def test_ramp_goes_from_level_to_level(host: str, tmp_path: Path) -> None:
    workload = tmp_path / "short.yaml"
    workload.write_text(
        "{question: 'Does it?', seed: 1, users: {chat_stream: 1}, prompt: {tokens: 20}, output: {tokens: 8},"
        " arrival: {kind: ramp, of: users, levels: [1, 2, 3], step_s: 4, settle_s: 1, least_gain: 0}}"
    )
    told = load(host, tmp_path / "run", workload=str(workload))

    assert told.returncode == 0, told.stdout + told.stderr
    levels = json.loads((tmp_path / "run" / "levels.json").read_text())
    assert [level["load"] for level in levels] == [1, 2, 3][: max(2, len(levels))]
    assert all(level["end"] - level["begin"] >= 3 for level in levels)


def test_service_that_is_not_there_is_told(tmp_path: Path) -> None:
    told = load("http://127.0.0.1:9", tmp_path, "--duration", "8")

    assert told.returncode == 2
    assert "is the service running?" in told.stderr + told.stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_still_makes_its_report(host: str, tmp_path: Path, how: signal.Signals) -> None:
    command = [
        str(PYTHON),
        "-m",
        "loadtests",
        "run",
        "smoke-protocol",
        "--host",
        host,
        "--out",
        str(tmp_path),
    ]
    settings = {"TOKEN": TOKEN, "OVER_LIMIT_TOKEN": LIMITED_TOKEN, **PARTS[0][1]}
    environment = {**os.environ, **{f"LOADTESTS_{name}": value for name, value in settings.items()}}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job ignores SIGINT, and so would whatever it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("00:05/"):
                break
        os.killpg(process.pid, how)
        process.stdout.read()

    assert process.returncode == 130
    assert (tmp_path / "report.html").exists()
