"""The long workloads in a row: which runs, what they leave, and the section of the page that is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from loadtests import series as series_module
from loadtests.own_service import TOKEN, OwnService, first_answer, principals
from loadtests.page import fill
from loadtests.record import Record, to_lines
from loadtests.report import Report, write_report
from loadtests.run import Options
from loadtests.run_folder import RECORDS, RUN
from loadtests.section import WorkloadError
from loadtests.series import FILE, MEMORY, Series, memory_noted, memory_of, read_series, run_series
from loadtests.series_page import BEGIN as BEGIN_MARK
from loadtests.series_page import END, PAGE, gaps, read_series_folder, section, write_page
from loadtests.target import TargetError
from loadtests.workload import Workload
from tests.loadtests.scripted_server import Scripted, ScriptedServer
from tests.loadtests.test_load_report import BEGIN, facts
from tests.loadtests.test_measures import failed, streamed

RUNS = """
model: m
quantisation: Q
runs:
  - {workload: steady-chat, duration_s: 60}
  - {workload: saturation, settings: {LLM_RATE_LIMIT_RPS: "0"}}
"""


def read(tmp_path: Path, text: str = RUNS) -> Series:
    file = tmp_path / "series.yaml"
    file.write_text(text)
    return read_series(file)


def test_series_that_is_shipped_has_the_workload_of_each_question_and_ends_in_time() -> None:
    series = read_series(FILE)

    names = {entry.name for entry in series.entries}
    assert names >= {
        "steady-chat",
        "shared-prefix",
        "long-among-short",
        "burst",
        "soak",
        "overload",
        "saturation",
    }
    assert series.seconds <= 25 * 60


def test_duration_is_the_one_that_the_series_says(tmp_path: Path) -> None:
    steady, ramp = read(tmp_path).entries

    assert (steady.workload.duration_s, steady.workload.warmup_s) == (60, 5)
    assert ramp.workload.duration_s == 180
    assert (steady.settings, ramp.settings) == ({}, {"LLM_RATE_LIMIT_RPS": "0"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("runs: []", "runs"),
        ("model: m\nquantisation: Q\nruns: [{workload: steady-chat, duration: 3}]", r"runs\[0\]\.duration"),
        ("model: m\nquantisation: Q\nruns: [{workload: nothing-like-it}]", "nothing-like-it"),
        ("model: m\nruns: [{workload: steady-chat}]", "quantisation: it is missing"),
        ("model: m\nquantisation: Q\nruns: [{workload: steady-chat}]\nmore: 1", "more"),
        ("a: [", "not YAML"),
    ],
)
def test_mistake_in_a_series_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(WorkloadError, match=told):
        read(tmp_path, text)


def leave_run(folder: Path, *records: Record, **changes: Any) -> Report:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN).write_text(json.dumps(facts(**changes)))
    (folder / RECORDS).write_text(to_lines(records))
    return write_report(folder)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str], Options]]:
    """Runs without a service and without locust: name, settings and options of each."""
    seen: list[tuple[str, dict[str, str], Options]] = []
    asked: list[dict[str, str]] = []

    @contextmanager
    def own_service(
        _python: str, _folder: Path, settings: dict[str, str], limits: Any
    ) -> Iterator[OwnService]:
        asked.append(dict(settings))
        assert limits == {}, "the caller has the service's own limits"
        yield OwnService("http://127.0.0.1:1", 2**22)

    def run_workload(name: str, workload: Workload, options: Options) -> Report:
        seen.append((name, asked[-1], options))
        if name == "saturation":
            raise TargetError("it does not answer")
        return leave_run(options.out, streamed(start=BEGIN + 3))

    monkeypatch.setattr(series_module, "own_service", own_service)
    monkeypatch.setattr(series_module, "first_answer", lambda _service, _model: None)
    monkeypatch.setattr(series_module, "run_workload", run_workload)
    return seen


def test_each_run_has_a_service_with_its_settings_and_a_folder(
    tmp_path: Path, ran: list[tuple[str, dict[str, str], Options]]
) -> None:
    reports = run_series(read(tmp_path), python="python", out=tmp_path / "out")

    steady, ramp = ran
    assert (steady[0], steady[1]) == ("steady-chat", {"LLM_DEFAULT_BACKEND": "llamacpp"})
    assert ramp[1]["LLM_RATE_LIMIT_RPS"] == "0"
    assert steady[2].environment["LOADTESTS_DURATION_S"] == "60"
    assert [report.html.parent.name for report in reports] == ["steady-chat"]
    assert memory_of(tmp_path / "out" / "steady-chat") is not None


def test_run_that_cannot_be_made_is_told_and_the_others_follow(
    tmp_path: Path, ran: list[tuple[str, dict[str, str], Options]], capsys: pytest.CaptureFixture[str]
) -> None:
    run_series(read(tmp_path), python="python", out=tmp_path / "out")

    told = capsys.readouterr().out
    assert "2 runs, about 4 min in all: steady-chat, saturation" in told
    assert "!! saturation: it does not answer" in told
    assert len(ran) == 2


def test_series_without_a_run_that_could_be_made_fails(
    tmp_path: Path, ran: list[tuple[str, dict[str, str], Options]]
) -> None:
    with pytest.raises(TargetError, match="none of the runs"):
        run_series(read(tmp_path), python="python", out=tmp_path / "out", only=["saturation"])


class Growing(OwnService):
    """Has one MiB more each time it is looked at."""

    looks = 0

    @override
    def memory_mib(self) -> float:
        type(self).looks += 1
        return 100.0 + type(self).looks


def test_memory_is_noted_when_a_block_begins_to_count_and_when_it_ends(tmp_path: Path) -> None:
    with memory_noted(Growing("http://127.0.0.1:1", 1), tmp_path / MEMORY, begin_s=60):
        pass

    noted = memory_of(tmp_path)
    assert noted is not None
    assert noted["begin_mib"] == noted["end_mib"] == 101


def test_caller_without_limits_of_his_own_has_those_of_the_service() -> None:
    rows = principals({})["principals"]

    assert isinstance(rows, list)
    assert rows[0]["limits"] == {}
    assert rows[1]["limits"] == {"rps": 1, "burst": 3}


def test_model_is_loaded_before_the_load_begins() -> None:
    server = ScriptedServer(lambda *_: Scripted(body={}))
    with server.running():
        first_answer(OwnService(server.url, 1), "m")

    ((method, path, headers, body),) = server.asked
    assert (method, path, body["model"], body["max_tokens"]) == ("POST", "/v1/chat/completions", "m", 1)
    assert headers["Authorization"] == f"Bearer {TOKEN}"


def test_model_that_cannot_be_loaded_is_told() -> None:
    server = ScriptedServer(lambda *_: Scripted(status=503, body={"detail": "no memory"}))
    with server.running(), pytest.raises(TargetError, match=r"503.*no memory"):
        first_answer(OwnService(server.url, 1), "m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs: one in which a caller waits too long and one fails, and a later one that is as it should be."""
    slow = [streamed(start=BEGIN + 3 + i, ttft=0.9) for i in range(3)]
    leave_run(
        tmp_path / "b",
        *slow,
        streamed(start=BEGIN + 4),
        failed("cut", BEGIN + 5, "chat_stream"),
        workload="first",
        running_after=2.0,
    )
    (tmp_path / "b" / MEMORY).write_text(
        json.dumps({"begin_mib": 600.4, "end_mib": 612.0, "highest_mib": 613.0})
    )
    leave_run(
        tmp_path / "a", streamed(start=BEGIN + 103), workload="second", begin=BEGIN + 100, end=BEGIN + 120
    )
    return tmp_path


def test_section_has_a_row_per_run_and_user_with_numbers_and_failures(folder: Path) -> None:
    text = section(read_series_folder(folder))

    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[2].startswith("| first · chat_stream | 5 | 1 | 0 | 900 / 900 | ")
    assert rows[2].endswith("| 20% | 600 → 612 |")
    assert rows[3].startswith("| second · chat_stream | 1 | 0 | 0 | 400 / 400 |")


def test_section_names_what_did_not_hold(folder: Path) -> None:
    text = section(read_series_folder(folder))

    assert "Of 4 expectations 3 held." in text
    assert "- **first**: running_after ≤ 0: 2 ()" in text


def test_section_states_model_machine_and_versions(folder: Path) -> None:
    text = section(read_series_folder(folder))

    for part in (
        "tiny<model>, Q4_1",
        "a CPU, 2 cores",
        "no GPU",
        "locust 2.47.0",
        "revision abc",
        "seeds: first 1",
    ):
        assert part in text


def test_gaps_are_expectations_first_and_then_the_largest_share_outside_the_bounds(folder: Path) -> None:
    named = [gap.text for gap in gaps([one.found for one in read_series_folder(folder)])]

    assert named == [
        "first: running_after ≤ 0 was expected; it is 2",
        "first, chat_stream: 4 of 5 answers (80%) outside TTFT ≤ 0.5 s, 1 of them failed",
    ]


def test_refusals_that_are_expected_are_no_gap(tmp_path: Path) -> None:
    refused = Record(user="chat_stream", start=BEGIN + 4, outcome="refused", error="429 x", e2e=0.01)
    leave_run(tmp_path / "a", streamed(start=BEGIN + 3), refused)

    assert gaps([one.found for one in read_series_folder(tmp_path)]) == []
    assert "No gap" in section(read_series_folder(tmp_path))


def test_page_gets_the_section_between_its_markers(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN_MARK}\nold\n{END}\nafter\n")

    assert write_page(folder, page) == ["first", "second"]
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN_MARK}\n| Workload · user |")
    assert "old" not in text
    assert text.endswith(f"\n{END}\nafter\n")


def test_page_of_benchmarks_has_a_place_for_the_series() -> None:
    fill(PAGE.read_text(), BEGIN_MARK, END, "")


def test_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
        write_page(tmp_path)
