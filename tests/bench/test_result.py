"""Result files, tables and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import MEASUREMENTS, main, shown_command
from bench.aborts import gauge_of
from bench.compare import COMPARE
from bench.report import PAGE, begin, end, fill, report
from bench.result import Result, markdown, number, read, render, shown, verdict, write
from bench.start import role
from bench.stats import Spread
from bench.summary import NAME as SUMMARY


def a_result(**changes: Any) -> Result:
    plain: dict[str, Any] = {
        "name": "echo",
        "command": "python -m bench echo",
        "started_at": "2030-01-01T00:00:00+00:00",
        "machine": {
            "cpu": "A CPU",
            "cores": 2,
            "threads": 4,
            "memory_gib": 8,
            "system": "Linux 6",
            "load_average": 0.1,
        },
        "versions": {"llm-inference": "abc"},
        "scheduling": "usual",
        "client": "aiohttp",
        "parameters": {"slots": 16},
        "n": "3 requests",
        "data": {"x": 1.5},
    }
    return Result(**(plain | changes))


def a_table(data: Mapping[str, Any]) -> str:
    return f"x is {data['x']}"


def test_a_table_has_one_line_per_row_and_as_many_cells_as_its_head() -> None:
    text = markdown(["what", "ours", "theirs"], [["speed", "1.0", "2.0"], ["a|b", "3.0", "–"]])

    assert text.splitlines() == [
        "| what | ours | theirs |",
        "| --- | ---: | ---: |",
        "| speed | 1.0 | 2.0 |",
        "| a\\|b | 3.0 | – |",
    ]


def test_numbers_are_rounded_and_thousands_set_apart() -> None:
    assert (number(1234.56), number(1234.56, 0), number(None)) == ("1,234.6", "1,235", "–")


def test_a_spread_is_shown_as_median_and_range() -> None:
    assert shown(Spread(2.0, 1.0, 3.25), 2) == "2.00 (1.00–3.25)"


@pytest.mark.parametrize(
    ("value", "goal", "words"),
    [
        (1.05, {"at_most": 1.05}, "≤ 1.05: met"),
        (1.051, {"at_most": 1.05}, "≤ 1.05: missed"),
        (0.97, {"at_least": 0.97}, "≥ 0.97: met"),
        (0.969, {"at_least": 0.97}, "≥ 0.97: missed"),
        (None, {"at_most": 6}, "≤ 6"),
    ],
)
def test_a_goal_is_met_at_its_limit_and_missed_beyond(
    value: float | None, goal: dict[str, float], words: str
) -> None:
    assert verdict(value, **goal) == words


def test_a_table_of_the_comparison_divides_ours_by_theirs() -> None:
    window = {
        "tokens_per_s": 100.0,
        "ttft_p50_ms": 50.0,
        "itl_p50_ms": None,
        "itl_p99_ms": 10.0,
        "e2e_p50_ms": 1.0,
        "usage_tokens_per_s": 99.0,
        "text_per_usage": 1.0,
        "cpu_cores": 2.0,
        "others_cores": 0.0,
        "requests": 3,
        "prompt_tokens_mean": 100.0,
    }
    theirs = window | {"tokens_per_s": 80.0}
    text = COMPARE.table({"points": [{"streams": 8, "ours": [window], "theirs": [theirs]}]})

    rows = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert "| 1.250 (1.250–1.250) | ≥ 0.97: met |" in rows["| 8 · output tokens/s, counted from the text"]
    assert rows["| 8 · ITL p50, ms"].endswith("| – | – | – | ≤ 1.05 |")


def test_the_text_of_a_result_states_its_conditions() -> None:
    result = a_result(errors=["status 500"], warnings=["the idle server was busy"])
    text = render({name: getattr(result, name) for name in result.__slots__}, a_table)

    for part in (
        "x is 1.5",
        "`python -m bench echo`",
        "A CPU, 2 cores (4 threads), 8 GiB",
        "llm-inference abc",
        "slots 16",
        "N: 3 requests",
        "Errors: 1; the first: status 500",
        "**Warning**: the idle server was busy",
    ):
        assert part in text


def test_a_written_result_reads_back(tmp_path: Path) -> None:
    text = write(a_result(), tmp_path, a_table)
    plain = read(tmp_path, "echo")

    assert plain is not None
    assert render(plain, a_table) == text
    assert (tmp_path / "echo.md").read_text() == text + "\n"


def test_filling_a_page_replaces_what_stood_between_the_markers_and_nothing_else() -> None:
    page = f"before\n{begin('a')}\nold\nolder\n{end('a')}\nbetween\n{begin('b')}\nkept\n{end('b')}\n"

    assert fill(page, "a", r"new \1 text") == page.replace("old\nolder", r"new \1 text")


@pytest.mark.parametrize("page", ["", f"{begin('a')}\n", f"{end('a')}\n{begin('a')}\n"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="bench:a"):
        fill(page, "a", "x")


def test_a_report_takes_the_results_that_are_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{begin('echo')}\n\n{end('echo')}\n{begin('start')}\nkept\n{end('start')}\n")
    write(a_result(), tmp_path, a_table)
    known = [replace(MEASUREMENTS[name], table=a_table) for name in ("echo", "start")]

    assert report(tmp_path, known, page) == ["echo"]
    assert "x is 1.5" in page.read_text()
    assert "kept" in page.read_text()


@pytest.mark.parametrize("name", [*MEASUREMENTS, SUMMARY])
def test_the_page_has_a_place_for_every_measurement(name: str) -> None:
    fill(PAGE.read_text(), name, "")


def test_the_command_in_a_report_names_no_path_of_the_machine() -> None:
    given = ["llama-server", "--llama-server", "/a/b", "--streams", "1,8", "--out=/c/d", "--seed", "2"]

    assert shown_command(given) == "python -m bench llama-server --streams 1,8 --seed 2"


def test_every_measurement_takes_its_own_quick_arguments() -> None:
    import argparse

    for measurement in MEASUREMENTS.values():
        parser = argparse.ArgumentParser(exit_on_error=False)
        measurement.add_arguments(parser)
        parser.parse_args(list(measurement.quick))


def test_a_report_without_results_fails(tmp_path: Path) -> None:
    assert main(["report", "--from", str(tmp_path)]) == 1


def test_a_metric_is_the_sum_of_its_series_and_of_no_other_name() -> None:
    text = '# HELP llm:n x\nllm:n{pid="1"} 2.0\nllm:n{pid="2"} 3\nllm:n_total 9\n'

    assert gauge_of(text, "llm:n") == 5
    assert gauge_of(text, "llm:other") == 0


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-m", "x", "--service-name", "Gateway", "--fd", "3"], "Gateway"),
        (["python", "bentoml", "serve", "."], "supervisor"),
        (["python", "-c", "from multiprocessing.resource_tracker import main"], "helpers"),
    ],
)
def test_a_process_is_named_by_its_command(command: list[str], name: str) -> None:
    assert role(command) == name
