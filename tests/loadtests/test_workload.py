"""Workload files: what is read, and what each mistake is told."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loadtests.lengths import read_lengths
from loadtests.section import Section, WorkloadError
from loadtests.workload import FOLDER, available, load_workload, parse_workload

GOOD: dict[str, Any] = {
    "question": "does it?",
    "seed": 1,
    "duration_s": 100,
    "warmup_s": 10,
    "arrival": {"kind": "closed", "users": 4},
    "users": {"chat_stream": 3, "models": {"weight": 1, "pause_s": 1}},
    "prompt": {"tokens": 10},
    "output": {"tokens": {"uniform": [1, 3]}},
}
RAMP = {"kind": "ramp", "of": "users", "levels": [1, 2], "step_s": 10}
POISSON = {"kind": "poisson", "rate": 8}


def parse(**changes: Any) -> Any:
    raw = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return parse_workload(yaml.safe_dump(raw), name="w")


def test_right_file_is_read() -> None:
    workload = parse()

    assert (workload.name, workload.arrival.users, workload.refusals_expected) == ("w", 4, False)
    assert [(user.kind, user.weight) for user in workload.users] == [("chat_stream", 3), ("models", 1)]


@pytest.mark.parametrize("name", available())
def test_shipped_workload_is_right(name: str) -> None:
    workload = load_workload(name)

    assert workload.question.endswith("?")
    assert workload.expect


def test_shipped_workloads_answer_the_questions_that_are_asked() -> None:
    asked = {"steady-chat", "shared-prefix", "long-among-short", "burst", "soak", "overload", "saturation"}

    assert asked <= set(available())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"question": None}, "question: it is missing"),
        ({"seed": 1.5}, "seed: 1.5 is not a whole number of 0 or more"),
        ({"duration_s": 0}, "duration_s: 0 is not a number above 0"),
        ({"duration_s": True}, "duration_s: True is not a number above 0"),
        ({"duration_s": float("nan")}, "duration_s: nan is not a number"),
        ({"warmup_s": 100}, "warmup_s: 100 leaves nothing of 100 s"),
        ({"durations_s": 5}, "durations_s: there is no such key; did you mean 'duration_s'?"),
        ({"arrival": None}, "arrival: it is missing"),
        ({"arrival": 3}, "arrival: 3 is not a mapping"),
        ({"arrival": {"kind": "open"}}, "arrival.kind: 'open' is not one of closed, poisson, burst, ramp"),
        ({"arrival": {"kind": "closed"}}, "arrival.users: it is missing"),
        ({"arrival": {"kind": "closed", "users": 0}}, "arrival.users: 0 is not a whole number of 1 or more"),
        ({"arrival": {"kind": "closed", "users": 1, "rate": 1}}, "arrival.rate: there is no such key"),
        ({"arrival": {"kind": "poisson", "rate": -1}}, "arrival.rate: -1 is not a number above 0"),
        (
            {"arrival": {**POISSON, "times_capacity": 3}},
            "arrival.rate: either this or times_capacity",
        ),
        ({"arrival": {"kind": "poisson", "times_capacity": 3}}, "arrival.probe_users: it is missing"),
        ({"arrival": {"kind": "burst", "size": 3}}, "arrival.every_s: it is missing"),
        (
            {"arrival": {**RAMP, "levels": [2, 1]}, "duration_s": None},
            "arrival.levels: [2, 1] are not whole numbers",
        ),
        ({"arrival": {**RAMP, "levels": [1, 1.5]}, "duration_s": None}, "arrival.levels"),
        (
            {"arrival": {**RAMP, "of": "rate", "levels": [2, 3]}, "duration_s": None},
            "arrival.levels: 3 is no multiple of the first, 2",
        ),
        (
            {"arrival": {**RAMP, "settle_s": 10}, "duration_s": None},
            "arrival.settle_s: 10 leaves nothing of a step",
        ),
        ({"arrival": RAMP}, "duration_s: a ramp lasts as long as its levels"),
        ({"users": {}}, "users.: at least one of chat_stream"),
        ({"users": {"chats": 1}}, "users.chats: there is no such kind of user; known: chat_stream"),
        ({"users": {"chat": 0}}, "users.chat: 0 is not a whole number of 1 or more"),
        ({"users": {"chat": {"weight": 1, "turns": 2}}}, "users.chat.turns: there is no such key"),
        (
            {"users": {"over_limit": 1}, "arrival": POISSON},
            "users.over_limit: an open loop does not wait",
        ),
        ({"prompt": {"tokens": 0}}, "prompt.tokens: 0 is not a number of 1 or more"),
        ({"prompt": {"tokens": {"normal": 3}}}, "prompt.tokens: one of uniform, lognormal, exponential, mix"),
        (
            {"output": {"tokens": {"uniform": [3, 1]}}},
            "output.tokens.uniform: [3, 1]: 1 <= lowest <= highest",
        ),
        ({"output": {"tokens": {"uniform": [3]}}}, "output.tokens.uniform: [3] is not [lowest, highest]"),
        (
            {"output": {"tokens": {"lognormal": {"median": 5, "sigma": 1, "max": 4}}}},
            "output.tokens.lognormal: min <= median <= max does not hold",
        ),
        (
            {"output": {"tokens": {"mix": [{"weight": 1, "of": {"uniform": [0, 4]}}]}}},
            "output.tokens.mix[0].of.uniform",
        ),
        ({"output": {"tokens": 3, "exact": "yes"}}, "output.exact: 'yes' is not true or false"),
        ({"request": {"model": "x"}}, "request.model: the workload decides this itself"),
        ({"request": [1]}, "request: [1] is not a mapping"),
        ({"refusals": "ok"}, "refusals: 'ok' is not one of expected, failure"),
        ({"bounds": {"ttft": 1}}, "bounds.ttft: there is no such key; did you mean 'ttft_s'?"),
        (
            {"expect": [{"measure": "chat.speed", "max": 1}]},
            "expect[0].measure: there is no measure 'chat.speed'",
        ),
        ({"expect": [{"measure": "failed"}]}, "expect[0].min: it is missing, and so is max"),
        (
            {"expect": [{"measure": "failed", "max": 0, "over": "x"}]},
            "expect[0].over: there is no measure 'x'",
        ),
        ({"expect": {}}, "expect: {} is not a list with entries"),
    ],
)
def test_mistake_is_told_with_its_place(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse(**changes)

    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("text", ["- 1", "just text", "", "a: [", "a: b: c"])
def test_file_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        parse_workload(text, name="w")


def test_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(WorkloadError, match=r"steady-chat.*or give a file's path"):
        load_workload("unsteady")


def test_message_of_a_file_begins_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("question: 3")

    with pytest.raises(WorkloadError, match=f"^{file}: "):
        load_workload(str(file))


def test_file_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((FOLDER / "burst.yaml").read_text())

    assert load_workload(str(file)).name == "mine"


def test_shorter_run_shortens_its_warm_up() -> None:
    assert parse().lasting(20).warmup_s == 2
    assert parse().lasting(1000).warmup_s == 10


def test_shorter_ramp_shortens_its_steps() -> None:
    ramp = parse(arrival=RAMP, duration_s=None, warmup_s=None).lasting(10)

    assert (ramp.arrival.step_s, ramp.arrival.settle_s) == (5, 1.25)


def test_capacity_is_probed_in_a_closed_loop_and_then_known() -> None:
    arrival = {"kind": "poisson", "times_capacity": 3, "probe_users": 8, "probe_s": 20}
    workload = parse(arrival=arrival)

    assert (workload.probe().arrival.kind, workload.probe().arrival.users) == ("closed", 8)
    assert [user.kind for user in workload.probe().users] == ["chat_stream"]
    assert workload.at_rate(6.0).arrival.rate_per_source == 1.5
    with pytest.raises(ValueError, match="capacity was not measured"):
        _ = workload.arrival.rate_per_source


SPECS = st.one_of(
    st.integers(1, 50),
    st.tuples(st.integers(1, 20), st.integers(20, 50)).map(lambda pair: {"uniform": list(pair)}),
    st.tuples(st.floats(5, 20), st.floats(0.1, 2)).map(
        lambda pair: {"lognormal": {"median": pair[0], "sigma": pair[1], "min": 2, "max": 50}}
    ),
    st.floats(0.5, 50).map(lambda mean: {"exponential": {"mean": mean, "max": 50}}),
)


@given(st.one_of(SPECS, st.lists(SPECS, min_size=1, max_size=3).map(
    lambda specs: {"mix": [{"weight": 1, "of": spec} for spec in specs]}
)), st.integers())  # fmt: skip
def test_drawn_lengths_stay_in_their_bounds_and_repeat(spec: Any, seed: int) -> None:
    lengths = read_lengths(Section({"tokens": spec}), "tokens", least=1)

    drawn = [lengths.draw_int(random) for random in [Random(seed)] for _ in range(20)]

    assert all(1 <= value <= lengths.highest + 0.5 for value in drawn)
    assert drawn == [lengths.draw_int(random) for random in [Random(seed)] for _ in range(20)]


def test_mean_of_an_even_distribution() -> None:
    random, lengths = Random(1), read_lengths(Section({"t": {"uniform": [0, 100]}}), "t")

    assert sum(lengths.draw(random) for _ in range(4000)) / 4000 == pytest.approx(50, abs=2)


def test_mix_draws_by_weight() -> None:
    spec = {"mix": [{"weight": 9, "of": 1}, {"weight": 1, "of": 1000}]}
    random, lengths = Random(1), read_lengths(Section({"t": spec}), "t")

    assert sum(lengths.draw(random) == 1000 for _ in range(4000)) == pytest.approx(400, abs=60)
