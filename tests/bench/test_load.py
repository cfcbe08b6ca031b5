"""What a window counts, and how its loop treats streams."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from bench.client import Answer, chat, open_session
from bench.load import MAX_FAILURES, LoadFailed, Window, closed_loop, look_at
from tests.bench.scripted_server import Script, scripted_server


def an_answer(sent: float, *pieces: tuple[float, str], ended: float | None = None, tokens: int = 0) -> Answer:
    return Answer(sent=sent, pieces=list(pieces), ended=ended, completion_tokens=tokens, prompt_tokens=100)


def test_only_text_that_arrives_inside_the_window_counts() -> None:
    answer = an_answer(0.0, (9.9, "a"), (10.0, "b"), (15.0, "c"), (20.0, "d"))

    sample = look_at(Window(opened=10.0, closed=20.0, answers=[answer]))

    assert (sample.texts, sample.pieces, sample.seconds) == (["bc"], 2, 10.0)


def test_a_first_token_counts_when_it_arrives_inside_the_window_whenever_the_request_was_sent() -> None:
    before = an_answer(8.0, (10.5, "a"))
    too_early = an_answer(8.0, (9.5, "a"), (11.0, "b"))
    too_late = an_answer(19.0, (20.5, "a"))

    sample = look_at(Window(opened=10.0, closed=20.0, answers=[before, too_early, too_late]))

    assert sample.ttft == [2.5]


def test_a_gap_counts_when_it_ends_inside_the_window() -> None:
    answer = an_answer(0.0, (8.0, "a"), (9.0, "b"), (11.0, "c"), (11.5, "d"), (21.0, "e"))

    sample = look_at(Window(opened=10.0, closed=20.0, answers=[answer]))

    assert sample.gaps == [2.0, 0.5]


def test_gaps_are_those_of_one_stream_never_between_two() -> None:
    answers = [an_answer(10.0, (11.0, "a")), an_answer(10.0, (12.0, "b"))]

    assert look_at(Window(opened=10.0, closed=20.0, answers=answers)).gaps == []


def test_whole_requests_are_those_that_end_inside_the_window() -> None:
    inside = an_answer(9.0, (10.5, "a"), (11.0, "b"), ended=12.0, tokens=7)
    outside = an_answer(9.0, (10.5, "c"), ended=20.0, tokens=9)
    cancelled = an_answer(9.0, (10.5, "d"))

    sample = look_at(Window(opened=10.0, closed=20.0, answers=[inside, outside, cancelled]))

    assert (sample.e2e, sample.whole_texts, sample.whole_tokens) == ([3.0], ["ab"], [7])


def test_the_summary_of_an_empty_window_has_dashes_not_zeros() -> None:
    summary = look_at(Window(opened=0.0, closed=2.0)).summary()

    assert summary["ttft_p50_ms"] is None
    assert summary["pieces_per_s"] == 0


async def test_the_window_opens_when_the_last_warm_up_request_has_ended() -> None:
    script = Script()
    bodies = itertools.repeat(chat("next", 3))
    async with scripted_server(script) as url, open_session() as session:
        window = await closed_loop(
            session, url, warmup=[chat("first", 3), chat("first", 3)], bodies=bodies, seconds=0.05
        )

    warm = [answer.ended for answer in window.answers[:2]]
    assert all(ended is not None and ended <= window.opened for ended in warm)
    assert window.errors == []


async def test_as_many_requests_run_as_there_are_streams() -> None:
    script = Script()
    async with scripted_server(script) as url, open_session() as session:
        await closed_loop(
            session, url, warmup=[chat("x", 3)] * 3, bodies=itertools.repeat(chat("x", 3)), seconds=0.05
        )

    assert script.most_at_once == 3


async def test_all_connections_are_closed_when_the_window_closes() -> None:
    script = Script()
    async with scripted_server(script) as url, open_session() as session:
        window = await closed_loop(
            session,
            url,
            warmup=[chat("warm", 1)],
            bodies=itertools.repeat(chat("hold", 3)),
            seconds=0.05,
        )
        async with asyncio.timeout(5):
            await script.held_connection_closed.wait()

    assert [text for _, text in window.answers[-1].pieces] == ["held"]
    assert window.answers[-1].ended is None


async def test_a_server_that_only_fails_ends_the_measurement() -> None:
    async with scripted_server(Script(status=503)) as url, open_session() as session:
        streams = [chat("x", 3)] * (MAX_FAILURES + 1)

        with pytest.raises(LoadFailed, match="status 503"):
            await closed_loop(session, url, warmup=streams, bodies=itertools.repeat(chat("x", 3)), seconds=60)
