"""All comparisons in one go: what is run, what is left out, and the one table of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.measurement import Measurement, PeerMissing, Setup
from bench.peers import compare_all
from bench.processes import ServerFailed
from bench.run import Conditions
from bench.stats import Spread
from bench.summary import gaps, summary, table
from tests.bench.measurements import Scripted, a_ratio

MACHINE = {"cpu": "A", "cores": 2, "threads": 2, "memory_gib": 8, "system": "Linux", "load_average": 0.1}
CONDITIONS = Conditions(
    command="python -m bench peers", machine=MACHINE, versions={"llm-inference": "abc"}, scheduling="usual"
)


def compared(
    out: Path, *scripted: Scripted, quick: bool = False, alternations: int | None = None
) -> tuple[list[str], int]:
    setup = Setup(out=out, priority=None, llama_server=None, seed=1)
    measurements: Sequence[Measurement] = [each.measurement() for each in scripted]
    return compare_all(measurements, setup, CONDITIONS, quick=quick, alternations=alternations)


def test_comparisons_make_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, status = compared(tmp_path, Scripted("a"), Scripted("b", [a_ratio(what="TTFT p50, ms")]))

    told = capsys.readouterr().out
    assert (done, status) == (["a", "b"], 0)
    assert (
        "| vLLM against theirs · tokens/s | 11.0 (10.0–12.0) | 10.0 (10.0–10.0) | 1.10 (1.00–1.20) |" in told
    )
    assert "| vLLM against theirs · TTFT p50, ms |" in told
    assert "- b: " in told


def test_peer_that_is_not_installed_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, status = compared(tmp_path, Scripted("a"), Scripted("b", fails=PeerMissing("b is not installed")))

    told = capsys.readouterr()
    assert (done, status) == (["a"], 0)
    assert "!! b is LEFT OUT: b is not installed" in told.err
    assert "- **Left out**: b: b is not installed" in told.out


def test_server_that_fails_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, status = compared(tmp_path, Scripted("a", fails=ServerFailed("a died\nits log")), Scripted("b"))

    assert (done, status) == (["b"], 1)
    assert "- **Left out**: a: it failed: a died\n" in capsys.readouterr().out


def test_errors_of_a_comparison_are_told_and_make_it_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, status = compared(tmp_path, Scripted("a", errors=["status 500"]))

    told = capsys.readouterr()
    assert (done, status) == (["a"], 1)
    assert "status 500" in told.err
    assert "errors: 1" in told.out


def test_nothing_to_compare_with_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, status = compared(tmp_path, Scripted(fails=PeerMissing("not here")))

    assert (done, status) == ([], 1)
    assert "nothing was compared" in capsys.readouterr().out


def test_time_is_estimated_before_and_told_on_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(tmp_path, Scripted("a"), Scripted("b"))

    told = capsys.readouterr().err
    assert "2 comparisons, about 10 min in all: a, b" in told
    assert "== 2 of 2: b: nothing (about 5 min; 0 s gone, about 5 min to go)" in told


@pytest.mark.parametrize(
    ("quick", "alternations", "rounds"), [(False, None, 5), (True, None, 1), (False, 2, 2)]
)
def test_turns_are_its_own_or_those_that_are_asked_for(
    tmp_path: Path, quick: bool, alternations: int | None, rounds: int
) -> None:
    scripted = Scripted()

    compared(tmp_path, scripted, quick=quick, alternations=alternations)

    assert scripted.asked == [argparse.Namespace(rounds=rounds)]


@pytest.mark.parametrize(
    ("ratio", "is_more_better", "better"),
    [
        (Spread(1.1, 1.05, 1.2), True, "ours"),
        (Spread(0.9, 0.8, 0.95), True, "theirs"),
        (Spread(0.9, 0.8, 0.95), False, "ours"),
        (Spread(1.1, 1.05, 1.2), False, "theirs"),
        (Spread(1.1, 0.99, 1.2), True, "neither"),
        (None, True, "–"),
    ],
)
def test_a_side_was_better_if_every_pair_was(ratio: Spread | None, is_more_better: bool, better: str) -> None:
    row = a_ratio(ratio=ratio, is_more_better=is_more_better)

    assert row.better == better
    assert f"| {better} |" in table([row])


def test_largest_gaps_are_named_by_how_far_ours_is_behind() -> None:
    rows = [
        a_ratio(0.4, 0.5, 0.6, what="a"),  # half as many: twice as bad
        a_ratio(2.9, 3.0, 3.1, what="b", is_more_better=False, peer="others"),
        a_ratio(0.9, 1.2, 1.3, what="c", is_more_better=False, route="gateway"),
        a_ratio(1.05, 1.1, 1.2, what="d", is_more_better=False, route="LiteLLM"),
        a_ratio(5.0, 6.0, 7.0, what="e"),
    ]

    assert gaps(rows) == [
        "Ours is behind in 4 of 5 rows; the largest gap to each, by the medians:",
        "",
        "1. vLLM against others, b: 200 % behind",
        "2. vLLM against theirs, a: 100 % behind",
        "3. gateway against theirs, c: 20 % behind; single pairs lie on both sides of 1",
    ]


def test_of_each_peer_the_largest_gap_is_named() -> None:
    rows = [
        a_ratio(2.9, 3.0, 3.1, what="b", is_more_better=False),
        a_ratio(3.9, 4.0, 4.1, what="a", is_more_better=False),
        a_ratio(1.9, 2.0, 2.1, what="c", is_more_better=False, peer="others"),
    ]

    assert gaps(rows)[2:] == [
        "1. vLLM against theirs, a: 300 % behind",
        "2. vLLM against others, c: 100 % behind",
    ]


def test_no_gap_is_said_where_there_is_none() -> None:
    assert gaps([a_ratio()]) == ["Nowhere is ours behind by the medians."]


def test_no_summary_without_a_result(tmp_path: Path) -> None:
    assert summary(tmp_path, [Scripted().measurement()]) is None


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page for the comparison `a` alone, and the command told of both."""
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- bench:peers -->\n<!-- /bench:peers -->\n<!-- bench:a -->\nold\n<!-- /bench:a -->\n"
        "<!-- bench:b -->\nold\n<!-- /bench:b -->\n"
    )
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "MEASUREMENTS", {name: Scripted(name).measurement() for name in "ab"})
    return page


def test_command_without_arguments_compares_with_everybody_and_writes_the_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench"])
    monkeypatch.setattr(command, "ROOT", tmp_path)

    assert command.main() == 0
    text = page.read_text()
    assert "vLLM against theirs" in text
    assert "table of a" in text
    assert "table of b" in text


def test_quick_run_leaves_the_page_as_it_is(page: Path, tmp_path: Path) -> None:
    before = page.read_text()

    assert command.main(["peers", "--quick", "--out", str(tmp_path / "out")]) == 0
    assert page.read_text() == before


def test_page_gets_what_this_run_measured_and_keeps_the_rest(page: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    command.main(["peers", "--quick", "--out", out])

    assert command.main(["peers", "--only", "b", "--out", out]) == 0
    text = page.read_text()
    assert "<!-- bench:a -->\nold\n" in text
    assert "table of b" in text
    assert "- a: " in text  # the one table has every comparison that there is


def test_unknown_comparison_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["peers", "--only", "llama-server,echo"])

    assert "invalid" in capsys.readouterr().err
