"""Around a run: the target, progress, locust's events, the service's own count, and that all of it stands alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests.__main__ import main
from loadtests.locust_events import events_of
from loadtests.metrics import read_running, running_requests
from loadtests.progress import Progress
from loadtests.record import Record
from loadtests.target import Target, TargetError, find_target, workload_asked_for
from tests.loadtests.scripted_server import Scripted, ScriptedServer
from tests.loadtests.test_measures import failed, streamed

ROOT = Path(__file__).parents[2]
MODELS = [
    {"id": "vectors", "capabilities": ["embeddings"]},
    {"id": "talks", "capabilities": ["chat", "completion"]},
    {"id": "other", "capabilities": ["chat"]},
]


def found_target(models: Any, status: int = 200) -> Target:
    server = ScriptedServer(lambda *_: Scripted(status=status, body={"data": models}))
    with server.running():
        return find_target(server.url + "/")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "WORKLOAD",
        "MODEL",
        "EMBEDDING_MODEL",
        "TOKEN",
        "OVER_LIMIT_TOKEN",
        "RATE",
        "DURATION_S",
        "PROBE",
    ):
        monkeypatch.delenv(f"LOADTESTS_{name}", raising=False)


def test_model_is_the_first_that_can() -> None:
    target = found_target(MODELS)

    assert (target.model, target.embedding_model, target.headers()) == ("talks", "vectors", {})


def test_server_that_tells_no_capabilities_is_taken_to_chat() -> None:
    target = found_target([{"id": "m"}])

    assert (target.model, target.embedding_model) == ("m", None)


def test_model_and_tokens_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADTESTS_MODEL", "mine")
    monkeypatch.setenv("LOADTESTS_TOKEN", "t")
    monkeypatch.setenv("LOADTESTS_OVER_LIMIT_TOKEN", "o")

    target = found_target(MODELS)

    assert target.model == "mine"
    assert target.headers() == {"Authorization": "Bearer t"}
    assert target.headers(is_over_limit=True) == {"Authorization": "Bearer o"}


@pytest.mark.parametrize(
    ("models", "status", "told"),
    [
        (MODELS[:1], 200, "lists no model that chats"),
        (None, 200, "no list of models"),
        (MODELS, 401, "answers 401.*set LOADTESTS_TOKEN"),
        (MODELS, 500, "answers 500"),
    ],
)
def test_service_that_cannot_be_loaded_is_told(models: Any, status: int, told: str) -> None:
    with pytest.raises(TargetError, match=told):
        found_target(models, status)


def test_service_that_is_not_there_is_told() -> None:
    with pytest.raises(TargetError, match="is the service running"):
        find_target("http://127.0.0.1:9")


def test_workload_is_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADTESTS_WORKLOAD", "overload")
    with pytest.raises(TargetError, match="needs a measured capacity"):
        workload_asked_for()

    monkeypatch.setenv("LOADTESTS_RATE", "6")
    assert workload_asked_for().arrival.rate == 6

    monkeypatch.setenv("LOADTESTS_PROBE", "1")
    assert workload_asked_for().arrival.kind == "closed"


@pytest.mark.parametrize("value", ["x", "0", "-1", "nan", "inf"])
def test_number_in_the_environment_must_be_one(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOADTESTS_DURATION_S", value)

    with pytest.raises(TargetError, match="LOADTESTS_DURATION_S"):
        workload_asked_for()


def test_mistakes_on_the_command_line_are_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "no-such-workload"]) == 2
    assert main(["run", "steady-chat", "--duration", "-5"]) == 2
    assert main(["report", "/nowhere"]) == 2
    assert main(["run", "steady-chat", "--host", "localhost:14011"]) == 2

    errors = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in errors] == [True] * 4


def test_list_names_every_workload_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0

    assert "steady-chat" in capsys.readouterr().out


def test_progress_tells_about_the_last_interval() -> None:
    progress = Progress(0.0, 60.0)
    progress.take([streamed(start=1.0), failed("500", 2.0)])

    first, second = progress.line(5.0, 3, 20), progress.line(10.0, 3, 50)

    assert "00:05/01:00  3 users  2 requests  0.4/s  4 pieces/s  TTFT p50 400 p99 400 ms" in first
    assert "failed 1" in first
    assert "00:10/01:00  3 users  2 requests  0.0/s  6 pieces/s  TTFT -  ITL -  failed 1" in second


def test_stream_makes_an_event_of_every_gap() -> None:
    events = [
        (kind, round(value, 1), failure)
        for kind, value, failure in events_of(streamed(), refusals_expected=False)
    ]

    assert events == [
        ("TTFT", 400.0, None),
        ("ITL", 100.0, None),
        ("ITL", 300.0, None),
        ("TPOT", 133.3, None),
        ("e2e", 1000.0, None),
        ("tokens/s", 4.0, None),
    ]


def test_violation_is_a_failure_in_locust_too() -> None:
    record = streamed(outcome="failed", error="no-done", e2e=None)

    assert list(events_of(record, refusals_expected=True))[-1] == ("e2e", 0.0, "no-done")


@pytest.mark.parametrize(
    ("user", "expected", "event"),
    [
        ("chat", False, ("e2e", 10.0, "429 x")),
        ("chat", True, ("refused", 10.0, None)),
        ("over_limit", False, ("refused", 10.0, None)),
    ],
)
def test_refusal_is_a_failure_where_nobody_expects_it(user: str, expected: bool, event: Any) -> None:
    record = Record(user=user, start=0, outcome="refused", error="429 x", e2e=0.01)

    assert list(events_of(record, refusals_expected=expected)) == [event]


def test_whoever_left_is_no_failure() -> None:
    record = streamed(outcome="abandoned", e2e=None, completion_tokens=None)

    kind, value, failure = list(events_of(record, refusals_expected=False))[-1]
    assert (kind, round(value), failure) == ("left", 800, None)


def test_running_requests_are_read_from_the_metrics() -> None:
    assert read_running("# HELP x\nllm:num_requests_running 2.0\nllm:num_requests_waiting 5\n") == 2.0
    assert read_running('vllm:num_requests_running{model="m"} 1\n') == 1.0
    assert read_running("llm_other 1\n") is None


def test_running_requests_are_waited_for() -> None:
    left = [2, 1, 0]
    server = ScriptedServer(lambda *_: Scripted(body=f"llm:num_requests_running {left.pop(0)}\n".encode()))
    with server.running():
        assert running_requests(Target(host=server.url, model="m"), patience_s=5) == 0

    assert left == []


def test_patience_with_running_requests_ends() -> None:
    server = ScriptedServer(lambda *_: Scripted(body=b"llm:num_requests_running 1\n"))
    with server.running():
        assert running_requests(Target(host=server.url, model="m"), patience_s=0) == 1


def test_service_without_metrics_tells_nothing() -> None:
    server = ScriptedServer(lambda *_: Scripted(status=404, body={}))
    with server.running():
        assert running_requests(Target(host=server.url, model="m"), patience_s=0) is None


def test_load_tests_import_neither_the_service_nor_locust() -> None:
    code = (
        "import sys, loadtests.__main__; print(sorted({name.partition('.')[0] for name in sys.modules} & {'backends', "
        "'models', 'openai_compat', 'service', 'settings', 'preflight', 'bentoml', 'bench', 'locust', 'gevent'}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )

    assert told.stdout.strip() == "[]"
