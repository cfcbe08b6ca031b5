"""What each comparison gives to the one table: of whom, in which direction, and what is asked of it."""

from __future__ import annotations

from typing import Any

import pytest

from bench.__main__ import MEASUREMENTS
from bench.measurement import Ratio
from bench.run import arguments

WINDOW = {"tokens_per_s": 10.0, "ttft_p50_ms": 5.0, "itl_p50_ms": 5.0, "itl_p99_ms": 5.0, "requests": 3}
TWICE = {name: 2 * value for name, value in WINDOW.items()}
ROUND = {"per_cpu_s": 10.0, "per_s": 10.0, "one_p50_ms": 5.0, "p50_ms": 5.0, "p99_ms": 5.0}
DATA: dict[str, Any] = {
    "llama-server": {"points": [{"streams": 8, "ours": [TWICE], "theirs": [WINDOW]}]},
    "llama_cpp.server": {"points": [{"streams": 1, "ours": [TWICE], "theirs": [WINDOW]}]},
    "shared-prefix": {"ours": [TWICE], "theirs": [WINDOW]},
    "vllm": {"points": [{"streams": 4, "bare": [WINDOW], "remote": [TWICE], "local": [TWICE]}]},
    "litellm": {
        "ours": [{name: 2 * value for name, value in ROUND.items()}],
        "gateway": [{name: 2 * value for name, value in ROUND.items()}],
        "proxy": [ROUND],
        "sdk": [{"per_cpu_s": 1.0, "per_s": 1.0}],
    },
}


def rows_of(name: str) -> list[Ratio]:
    ratios = MEASUREMENTS[name].ratios
    assert ratios is not None
    return list(ratios(DATA[name]))


def test_every_comparison_is_in_the_table() -> None:
    assert [name for name, each in MEASUREMENTS.items() if each.ratios is not None] == list(DATA)


@pytest.mark.parametrize("name", list(DATA))
def test_ours_is_divided_by_theirs_and_speed_is_better_where_there_is_more(name: str) -> None:
    rows = rows_of(name)

    assert {row.ratio.median for row in rows if row.ratio is not None} == {2.0}
    assert {row.is_more_better: row.better for row in rows} == {True: "ours", False: rows[0].peer}
    for row in rows:
        assert row.is_more_better == ("/s" in row.what or "per second" in row.what)


@pytest.mark.parametrize("name", list(DATA))
def test_comparison_has_a_table_and_an_estimate_of_its_time(name: str) -> None:
    measurement = MEASUREMENTS[name]
    assert measurement.seconds is not None
    whole, quick = (measurement.seconds(arguments(measurement, given)) for given in ((), measurement.quick))

    assert 60 < whole < 25 * 60
    assert quick < whole


def test_routes_are_named_by_what_lies_between() -> None:
    routes = {(row.route, row.peer) for name in DATA for row in rows_of(name)}

    assert routes == {
        ("llama.cpp", "llama-server"),
        ("llama.cpp", "llama_cpp.server"),
        ("vLLM", "vLLM's server"),
        ("gateway before vLLM", "vLLM's server"),
        ("LiteLLM", "LiteLLM's proxy"),
        ("gateway before a server", "LiteLLM's proxy"),
    }


def test_result_from_before_the_gateway_was_a_side_is_still_read() -> None:
    data = {side: rounds for side, rounds in DATA["litellm"].items() if side != "gateway"}
    litellm = MEASUREMENTS["litellm"]
    assert litellm.ratios is not None

    assert {row.route for row in litellm.ratios(data)} == {"LiteLLM"}
    assert "our gateway alone" not in litellm.table(data)
    assert "our gateway alone" in litellm.table(DATA["litellm"])
