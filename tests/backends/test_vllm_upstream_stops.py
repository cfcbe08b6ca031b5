"""Stops that a server keeps, lets slip or does not take."""

from __future__ import annotations

import asyncio

import pytest

from backends.types import ChoiceFinished, Usage
from backends.vllm.upstream import Upstream
from tests.backends.contract import endings_of, finished_of, text_of
from tests.backends.openai_upstream import (
    Hang,
    OpenAIUpstream,
    Script,
    counts,
    finish,
    sse,
    stream,
    text,
    usage,
)
from tests.backends.upstream_answers import FIVE, answer, chat, events_of, streamed


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
async def test_which_stop_it_was_is_kept(server: OpenAIUpstream, upstream: Upstream, name: str):
    script = stream(text("a"), finish("stop", **{name: "###"}), usage(1, 2))
    events = await answer(server, upstream, streamed(stop=("###",)), script)

    assert endings_of(events)[0].stop_reason == "###"


async def test_a_server_that_lets_a_part_of_a_stop_slip_is_cut_here(
    server: OpenAIUpstream, upstream: Upstream
):
    script = stream(text("a#"), text("##b"), finish("stop"), usage(1, 4))
    events = await answer(server, upstream, streamed(stop=("###",)), script)

    assert text_of(events) == "a"
    assert endings_of(events)[0] == ChoiceFinished(0, "stop", "###")


async def test_of_two_stops_in_one_step_the_earlier_cuts(server: OpenAIUpstream, upstream: Upstream):
    """vLLM takes the first of its list."""
    script = stream(text("ab one"), finish("stop", stop_reason="two"), usage(1, 4))
    events = await answer(server, upstream, streamed(stop=("two", "one")), script)

    assert text_of(events) == "ab "
    assert endings_of(events)[0].stop_reason == "one"


async def test_what_only_looked_like_a_stop_is_delivered_at_the_end(
    server: OpenAIUpstream, upstream: Upstream
):
    script = stream(text("a#"), finish("length"), usage(1, 2))
    events = await answer(server, upstream, streamed(stop=("###",)), script)

    assert text_of(events) == "a#"
    assert endings_of(events)[0] == ChoiceFinished(0, "length")


@pytest.mark.parametrize("stream_", [False, True])
async def test_more_stops_than_the_server_takes_end_the_call_when_one_matches(
    server: OpenAIUpstream, upstream: Upstream, stream_: bool
):
    running = [
        sse({"choices": [{"index": 0, "delta": {"content": c}}], "usage": counts(7, i + 1)})
        for i, c in enumerate(("a", "b3", "c"))
    ]
    server.answers(Script([*running[:2], Hang()]))
    events = await events_of(upstream, chat(stop=FIVE, stream=stream_))

    assert text_of(events) == "ab"
    assert endings_of(events)[0] == ChoiceFinished(0, "stop", "3")
    assert finished_of(events).usage == Usage(7, 2)
    async with asyncio.timeout(2):
        await server.completions[0].closed.wait()


async def test_without_running_counts_such_an_end_is_counted_and_marked(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(Script([text("a"), text("b3"), Hang()]))
    used = finished_of(await events_of(upstream, streamed(stop=FIVE))).usage

    assert (used.completion_tokens, used.is_estimated) == (2, True)


async def test_the_call_goes_on_until_every_choice_is_cut(server: OpenAIUpstream, upstream: Upstream):
    server.answers(Script([text("a1"), text("b", 1), text("zzz"), text("2", 1), Hang()]))
    events = await events_of(upstream, streamed(stop=FIVE, n=2))

    assert (text_of(events, 0), text_of(events, 1)) == ("a", "b")
    assert [e.stop_reason for e in endings_of(events).values()] == ["1", "2"]


async def test_a_choice_that_ends_by_itself_beside_unknown_stops_keeps_the_servers_usage(
    server: OpenAIUpstream, upstream: Upstream
):
    script = stream(text("a"), finish("length"), usage(3, 1))
    events = await answer(server, upstream, streamed(stop=FIVE), script)

    assert finished_of(events).usage == Usage(3, 1)


async def test_a_server_that_goes_on_past_a_stop_is_stopped(server: OpenAIUpstream, upstream: Upstream):
    server.answers(Script([text("a###"), text("b"), Hang()]))
    events = await events_of(upstream, streamed(stop=("###",)))

    assert text_of(events) == "a"
    async with asyncio.timeout(2):
        await server.completions[0].closed.wait()


async def test_stops_count_only_after_the_minimum_of_tokens(server: OpenAIUpstream, upstream: Upstream):
    pieces = [text("1", token_ids=[10, 11]), text("1", token_ids=[12]), text("a2", token_ids=[13])]
    server.answers(Script([*pieces, Hang()]))
    events = await events_of(upstream, streamed(stop=FIVE, min_tokens=3))

    assert text_of(events) == "11a"
