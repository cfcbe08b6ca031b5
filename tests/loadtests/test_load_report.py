"""The report of a made-up run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typing_extensions import override

from loadtests.charts import charts
from loadtests.findings import Findings, look_at
from loadtests.record import Record, to_lines
from loadtests.report import write_report
from loadtests.run_folder import RECORDS, RUN, Level, Run, read_run
from loadtests.svg import Chart, Series, number_text
from tests.loadtests.test_measures import failed, streamed

SOURCE = """
question: does it <work>?
seed: 1
duration_s: 20
warmup_s: 2
arrival: {kind: closed, users: 2}
users: {chat_stream: 1, chat: 1}
prompt: {tokens: 10}
output: {tokens: 10}
bounds: {ttft_s: 0.5}
expect:
  - {measure: failed, over: requests, max: 0.5, why: mostly}
  - {measure: running_after, max: 0}
"""
BEGIN = 1000.0


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "workload": "made-up",
        "source": SOURCE,
        "duration_s": 20,
        "rate": None,
        "is_probe": False,
        "question": "does it <work>?",
        "arrival": "closed loop of 2 users",
        "prompt": "10",
        "output": "10, at most",
        "users": {"chat_stream": 1, "chat": 1},
        "seed": 1,
        "host": "http://127.0.0.1:1",
        "model": "tiny<model>",
        "backend": "fake",
        "quantisation": "Q4_1",
        "service": "llm-inference 0.1.0",
        "revision": "abc",
        "client": {
            "cpu": "a CPU",
            "cores": 2,
            "threads": 2,
            "memory_gib": 4.0,
            "system": "Linux",
            "gpus": [],
        },
        "is_same_machine": True,
        "versions": {"python": "3.11", "locust": "2.47.0"},
        "begin": BEGIN,
        "end": BEGIN + 20,
        "lag_p99_s": 0.001,
        "running_after": 0.0,
        **changes,
    }


def records() -> list[Record]:
    return [
        streamed(start=BEGIN + 1),  # in the warm-up
        *(streamed(start=BEGIN + 2 + i / 10, ttft=0.2 + i / 1000) for i in range(120)),
        *(failed("500 <bad>", BEGIN + 5 + i) for i in range(3)),
    ]


def run(**changes: Any) -> Run:
    return Run(facts(**changes), records())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / RUN).write_text(json.dumps(facts()))
    (tmp_path / RECORDS).write_text(to_lines(records()))
    return tmp_path


class Page(HTMLParser):
    """Texts, and the tags that are open at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path", "rect", "circle"):
            self.open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect", "circle"):
            assert self.open.pop() == tag

    @override
    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_warm_up_counts_for_nothing() -> None:
    found = look_at(run())

    assert found.totals["requests"] == 123
    assert found.window.seconds == 18


def test_report_says_under_which_conditions(folder: Path) -> None:
    report = write_report(folder)

    for text in (report.markdown.read_text(), "".join(Page(report.html.read_text()).texts)):
        for told in (
            "tiny<model>",
            "Q4_1",
            "a CPU, 2 cores",
            "4.0 GiB",
            "locust 2.47.0",
            "llm-inference 0.1.0",
            "abc",
        ):
            assert told in text


def test_n_and_errors_stand_beside_every_latency(folder: Path) -> None:
    lines = write_report(folder).markdown.read_text().splitlines()

    row = next(line for line in lines if line.startswith("| TTFT, ms | chat_stream"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert (cells[2], cells[-2], cells[-1]) == ("120", "0", "0")
    assert cells[4] == "260"  # the median of 200 … 319 ms is 259.5


def test_failures_are_told_by_kind_with_the_first_of_each(folder: Path) -> None:
    assert "| 500 <bad> | failed | 3 | 500 <bad> at 1005 |" in write_report(folder).markdown.read_text()


def test_page_needs_nothing_else_and_is_well_formed(folder: Path) -> None:
    html = write_report(folder).html.read_text()

    assert Page(html).open == []
    assert not re.search(r"<script|<link|<img|src=|url\(|@import|https?://(?!127\.0\.0\.1:1\b)", html)
    assert "<bad>" not in html


def test_every_chart_is_there(folder: Path) -> None:
    found = look_at(read_run(folder))

    titles = [chart.title for chart in charts(found)]
    for title in (
        "Throughput against latency",
        "TTFT over time",
        "ITL over time",
        "Failures and refusals by kind",
    ):
        assert title in titles
    assert any(title.startswith("Goodput: answers with TTFT ≤ 0.5 s") for title in titles)
    for chart in charts(found):
        ET.fromstring(chart.render().split("<ul")[0])  # noqa: S314 - our own


def test_goodput_is_told_with_its_bounds(folder: Path) -> None:
    text = write_report(folder).markdown.read_text()

    assert "Bounds: TTFT ≤ 0.5 s." in text
    assert "| chat_stream | 120 | 120 | 120 | 100.0% |" in text


@pytest.mark.parametrize(("running", "expected"), [(0.0, True), (1.0, False), (None, False)])
def test_run_holds_when_each_expectation_does(running: float | None, expected: bool) -> None:
    assert look_at(run(running_after=running)).holds is expected


def test_run_without_requests_does_not_hold() -> None:
    assert not look_at(Run(facts(), [])).holds


def test_run_that_was_cut_in_its_warm_up_is_refused() -> None:
    with pytest.raises(ValueError, match="after the warm-up of 2 s"):
        look_at(run(end=BEGIN + 1.5))


def test_run_that_was_killed_ends_with_its_last_request() -> None:
    assert look_at(run(end=None)).window.end == pytest.approx(BEGIN + 13.9)


def ramp(levels: list[Level]) -> Findings:
    source = SOURCE.replace("duration_s: 20\nwarmup_s: 2\n", "").replace(
        "{kind: closed, users: 2}", "{kind: ramp, of: users, levels: [1, 2, 4], step_s: 6, settle_s: 1}"
    )
    return look_at(Run(facts(source=source, duration_s=18), records(), levels))


def test_levels_of_a_ramp_are_its_parts() -> None:
    found = ramp([Level(1, BEGIN + 1, BEGIN + 6), Level(2, BEGIN + 7, BEGIN + 12)])

    assert [part.label for part in found.parts] == ["1", "2"]
    assert [part.requests for part in found.parts] == [42, 51]
    assert not any("not by saturation" in problem for problem in found.problems)


def test_ramp_without_saturation_is_told() -> None:
    found = ramp([Level(level, BEGIN + 6 * i, BEGIN + 6 * i + 5) for i, level in enumerate((1, 2, 4))])

    assert any("not by saturation" in problem for problem in found.problems)


def test_late_client_is_told() -> None:
    assert any(
        "client itself was late by 200 ms" in problem for problem in look_at(run(lag_p99_s=0.2)).problems
    )


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"run\.json"):
        write_report(tmp_path)


def numbers(svg: str, pattern: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, svg)]


def test_chart_puts_more_further_up_and_later_further_right() -> None:
    svg = Chart("c", "x", "y", [Series("", [(0, 1), (1, 3), (2, 2)], kind="points")]).render()

    xs, ys = numbers(svg, r'cx="([\d.]+)"'), numbers(svg, r'cy="([\d.]+)"')
    assert xs == sorted(xs)
    assert ys[1] < ys[2] < ys[0]


def test_logarithmic_chart_has_equal_steps_for_equal_factors() -> None:
    svg = Chart("c", "x", "y", [Series("", [(0, 1), (1, 10), (2, 100)], kind="points")], log_y=True).render()

    low, middle, high = numbers(svg, r'cy="([\d.]+)"')
    assert low - middle == pytest.approx(middle - high, abs=0.2)


def test_bars_stand_on_one_another() -> None:
    bars = [Series("a", [(0.0, 2.0)], kind="bars"), Series("b", [(0.0, 1.0)], kind="bars")]
    svg = Chart("c", "x", "y", bars).render()

    tops, heights = numbers(svg, r'<rect[^>]* y="([\d.]+)"'), numbers(svg, r'height="([\d.]+)"')
    assert tops[1] + heights[1] == pytest.approx(tops[0], abs=0.11)
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)


@pytest.mark.parametrize(
    "points", [[(0.0, 0.0)], [(5.0, 5.0)], [(0.0, 0.0), (0.0, 0.0)], [(1.0, 1e-7), (2.0, 1e9)]]
)
@pytest.mark.parametrize("log", [True, False])
def test_any_values_can_be_drawn(points: list[tuple[float, float]], log: bool) -> None:
    svg = Chart("c", "x", "y", [Series("s", points)], log_x=log, log_y=log).render()

    assert "nan" not in svg
    if svg.startswith("<svg"):
        ET.fromstring(svg.split("<ul")[0])  # noqa: S314 - our own


def test_chart_of_nothing_says_so() -> None:
    assert "nothing was measured" in Chart("c", "x", "y", [Series("s", [])]).render()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.05, "0.05"), (1.5, "1.5"), (200, "200"), (5000, "5 000"), (2e6, "2e+06")]
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


def test_probe_of_a_shortened_run_counts_what_is_left_of_it() -> None:
    source = SOURCE.replace(
        "{kind: closed, users: 2}", "{kind: poisson, times_capacity: 3, probe_users: 2, probe_s: 40}"
    )
    known = facts(source=source, workload="made-up-probe", is_probe=True, duration_s=8.0, end=BEGIN + 8)

    found = look_at(Run(known, [streamed(start=BEGIN + 3)]))

    assert (found.window.begin, found.window.end) == (BEGIN + 2, BEGIN + 8)


def test_chart_of_failures_says_that_there_were_none() -> None:
    found = look_at(Run(facts(), [streamed(start=BEGIN + 3)]))

    assert (
        "Failures and refusals by kind: there were none." in [chart.render() for chart in charts(found)][-1]
    )
