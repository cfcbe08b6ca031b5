"""Records to numbers, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.measures import (
    Window,
    counts,
    distributions,
    errors_by_kind,
    in_flight,
    is_good,
    measures,
    started_in,
    tokens_per_s,
)
from loadtests.record import Record
from loadtests.workload import Bounds, parse_workload

WORKLOAD = parse_workload(
    """
question: does it?
seed: 1
duration_s: 10
arrival: {kind: closed, users: 1}
users: {chat_stream: 1, chat: 1}
prompt: {tokens: 10}
output: {tokens: 10}
bounds: {ttft_s: 0.5, tpot_s: 0.2}
""",
    name="w",
)


def streamed(start: float = 0.0, **changes: Any) -> Record:
    """First piece after 0.4 s, then two more, 0.1 and 0.3 s apart; four tokens."""
    return Record(
        **{
            "user": "chat_stream",
            "start": start,
            "status": 200,
            "ttft": 0.4,
            "gaps": [0.1, 0.3],
            "e2e": 1.0,
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "max_tokens": 5,
            **changes,
        }
    )


def failed(kind: str, start: float = 0.0, user: str = "chat") -> Record:
    return Record(user=user, start=start, outcome="failed", error=kind, detail=f"{kind} at {start:g}")


def test_times_of_one_stream() -> None:
    record = streamed()

    assert record.pieces == 3
    assert record.tpot == pytest.approx(
        0.4 / 3
    )  # 0.4 s from the first to the last, three tokens after the first
    assert record.tokens_per_s == pytest.approx(4.0)
    assert list(record.piece_times()) == pytest.approx([0.4, 0.5, 0.8])


@pytest.mark.parametrize("outcome", ["failed", "refused", "abandoned"])
def test_only_whole_answers_have_tpot_e2e_and_speed(outcome: Any) -> None:
    found = distributions([streamed(outcome=outcome)])

    assert set(found) == {"ttft", "itl", "late"}


def test_every_gap_counts_for_itl() -> None:
    found = distributions([streamed(), streamed(gaps=[0.2])])

    assert found["itl"].n == 3
    assert found["itl"].mean == pytest.approx(0.2)
    assert found["ttft"].n == 2


def test_counts_by_hand() -> None:
    records = [
        streamed(cached_tokens=6),
        streamed(turn=2, cached_tokens=8, gaps=[0.00001, 0.3]),
        streamed(ttft=0.6),
        failed("500"),
        Record(user="chat", start=0, outcome="refused", error="429"),
        streamed(outcome="abandoned", completion_tokens=None, e2e=None),
    ]

    found = counts(records, WORKLOAD.bounds)

    assert {name: found[name] for name in ("requests", "ok", "failed", "refused", "abandoned", "good")} == {
        "requests": 6, "ok": 3, "failed": 1, "refused": 1, "abandoned": 1, "good": 2,
    }  # fmt: skip
    assert (found["prompt_tokens"], found["cached_tokens"]) == (40, 14)
    assert (found["later_turns.prompt_tokens"], found["later_turns.cached_tokens"]) == (10, 8)
    assert (found["completion_tokens"], found["max_tokens"], found["pieces"]) == (12, 15, 9)
    assert (found["gaps"], found["gaps_at_once"]) == (8, 1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"ttft": 0.5}, True),
        ({"ttft": 0.51}, False),
        ({"gaps": [0.3, 0.4]}, False),  # TPOT 0.233
        ({"completion_tokens": 1, "gaps": []}, True),  # one token has no TPOT
        ({"outcome": "failed"}, False),
        ({"outcome": "abandoned"}, False),
    ],
)
def test_good_answer_keeps_every_bound_it_has_a_time_for(changes: dict[str, Any], expected: bool) -> None:
    assert is_good(streamed(**changes), WORKLOAD.bounds) is expected


def test_without_bounds_every_answer_is_good() -> None:
    assert is_good(streamed(ttft=99.0), Bounds())


def test_tokens_count_in_the_window_in_which_they_arrive() -> None:
    records = [streamed(start=0.0)]  # pieces at 0.4, 0.5, 0.8, worth 4/3 tokens each

    assert tokens_per_s(records, Window(0.45, 0.95)) == pytest.approx((4 / 3) * 2 / 0.5)
    assert tokens_per_s(records, Window(0.9, 1.9)) == 0


def test_tokens_of_a_whole_answer_count_at_its_end() -> None:
    record = Record(user="chat", start=0.0, e2e=1.5, completion_tokens=6)

    assert tokens_per_s([record], Window(0, 1)) == 0
    assert tokens_per_s([record], Window(1, 2)) == 6


def test_stream_without_a_count_has_a_token_per_piece() -> None:
    assert tokens_per_s([streamed(completion_tokens=None, outcome="abandoned")], Window(0, 1)) == 3


def test_errors_by_kind_the_most_frequent_first() -> None:
    records = [failed("cut"), failed("500", 1), failed("500", 2), streamed()]

    assert errors_by_kind(records) == [
        ("failed", "500", 2, "500 at 1"),
        ("failed", "cut", 1, "cut at 0"),
    ]


def test_in_flight_is_from_sent_to_ended() -> None:
    records = [
        streamed(start=0.0),
        streamed(start=0.5, outcome="abandoned", e2e=None),
    ]  # until 1.0, until 1.3

    assert [in_flight(records, at) for at in (0.0, 0.7, 1.1, 1.4)] == [1, 2, 1, 0]


def test_window_takes_its_begin_and_not_its_end() -> None:
    records = [streamed(start=at) for at in (0.9, 1.0, 1.9, 2.0)]

    assert [record.start for record in started_in(records, Window(1.0, 2.0))] == [1.0, 1.9]


def test_measures_are_named_for_all_and_for_each_kind() -> None:
    records = [streamed(start=1.0), streamed(start=6.0), failed("500", 7.0), streamed(start=99.0)]

    found = measures(records, WORKLOAD, Window(0.0, 10.0), {"running_after": 0.0})

    assert (found["requests"], found["failed"], found["chat.failed"], found["chat_stream.ok"]) == (3, 1, 1, 2)
    assert found["chat_stream.ttft.p50"] == pytest.approx(0.4)
    assert found["itl.n"] == 4
    assert (found["ok_per_s"], found["chat.ok_per_s"], found["running_after"]) == (0.2, 0.0, 0.0)
    assert (found["first_half.pieces"], found["second_half.pieces"]) == (3, 3)
    assert "chat.ttft.p50" not in found
