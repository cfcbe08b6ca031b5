"""What a server answers, as our events: whole and streamed, in any pieces."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from backends.types import ChoiceFinished, Started, TextDelta, TextPrompt, TokenPrompt, Usage
from backends.vllm import reading
from backends.vllm.upstream import Upstream
from tests.backends.contract import endings_of, finished_of, logprobs_of, request, text_of
from tests.backends.openai_upstream import (
    DONE,
    Hang,
    OpenAIUpstream,
    Script,
    chunk,
    counts,
    document,
    finish,
    role,
    sse,
    stream,
    text,
    usage,
    whole,
)
from tests.backends.upstream_answers import answer, batches_of, chat, entry, events_of, streamed

# The regular answer


async def test_a_stream_becomes_events_in_order(server: OpenAIUpstream, upstream: Upstream):
    events = await answer(
        server, upstream, streamed(), stream(role(), text("Hel"), text("lo"), finish(), usage(9, 2))
    )

    assert events[:-1] == [
        Started(0.0, 0),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        ChoiceFinished(0, "stop"),
    ]
    assert finished_of(events).usage == Usage(9, 2)


async def test_a_whole_answer_becomes_the_same(server: OpenAIUpstream, upstream: Upstream):
    events = await answer(server, upstream, chat(), whole("Hello"))

    assert events[0] == Started(0.0, 5)
    assert (text_of(events), endings_of(events)[0]) == ("Hello", ChoiceFinished(0, "stop"))
    assert finished_of(events).usage == Usage(5, 2)


async def test_the_times_are_those_of_the_first_chunk_and_the_end(server: OpenAIUpstream, upstream: Upstream):
    finished = finished_of(
        await answer(server, upstream, streamed(), stream(text("a"), finish(), usage(1, 1)))
    )

    assert finished.prefill_ms > 0
    assert finished.decode_ms > 0


async def test_all_chunks_of_one_read_are_one_batch(server: OpenAIUpstream, upstream: Upstream):
    server.answers(Script([role() + text("a") + text("b") + text("c") + finish() + usage(1, 3) + DONE]))
    batches = await batches_of(upstream, streamed())

    assert len(batches) == 1


async def test_text_completions_have_their_own_form(server: OpenAIUpstream, upstream: Upstream):
    pieces = [sse({"choices": [{"index": 0, "text": piece, "finish_reason": None}]}) for piece in ("a", "b")]
    end = sse({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    server.answers(
        stream(*pieces, end, usage(1, 2)),
        document({"choices": [{"index": 0, "text": "ab", "finish_reason": "length"}], "usage": counts(1, 2)}),
    )
    of_stream = await events_of(upstream, request("card", stream=True))
    of_document = await events_of(upstream, request("card"))

    for events in (of_stream, of_document):
        assert text_of(events) == "ab"
        assert endings_of(events)[0].finish_reason == "length"
        assert finished_of(events).usage == Usage(1, 2)


async def test_choices_keep_their_index_and_each_has_its_end(server: OpenAIUpstream, upstream: Upstream):
    script = stream(
        text("b", 1), text("a", 0), finish("length", 1), text("A", 0), finish("stop", 0), usage(3, 4)
    )
    events = await answer(server, upstream, streamed(n=2), script)

    assert (text_of(events, 0), text_of(events, 1)) == ("aA", "b")
    assert {i: e.finish_reason for i, e in endings_of(events).items()} == {0: "stop", 1: "length"}


@pytest.mark.parametrize("stream_", [False, True])
async def test_greedy_choices_are_one_answer_given_several_times(
    server: OpenAIUpstream, upstream: Upstream, stream_: bool
):
    script = stream(text("ab"), finish(), usage(3, 2)) if stream_ else whole("ab")
    events = await answer(server, upstream, chat(n=3, temperature=0.0, stream=stream_), script)

    assert [text_of(events, i) for i in range(3)] == ["ab", "ab", "ab"]
    assert sorted(endings_of(events)) == [0, 1, 2]
    assert finished_of(events).usage.completion_tokens == 6
    assert "n" not in server.completions[0].body


async def test_greedy_choices_of_several_prompts_are_numbered_by_prompt(
    server: OpenAIUpstream, upstream: Upstream
):
    choices = [{"index": i, "text": word, "finish_reason": "stop"} for i, word in enumerate("ab")]
    wanted = request("card", [TextPrompt(text="x"), TextPrompt(text="y")], n=2)
    events = await answer(server, upstream, wanted, document({"choices": choices, "usage": counts(2, 2)}))

    assert [text_of(events, i) for i in range(4)] == ["a", "a", "b", "b"]


async def test_what_is_sent_carries_our_key_and_our_id(server: OpenAIUpstream, upstream: Upstream):
    await answer(server, upstream, chat(request_id="req-1"), whole("a"))
    sent = server.completions[0]

    assert sent.headers["authorization"] == "Bearer sk-the-key"
    assert sent.headers["x-request-id"].startswith("req-1.")
    assert sent.headers["content-type"] == "application/json"


async def test_two_requests_of_one_id_have_different_ids_there(server: OpenAIUpstream, upstream: Upstream):
    for _ in range(2):
        await answer(server, upstream, chat(request_id="same"), whole("a"))

    assert len({sent.headers["x-request-id"] for sent in server.completions}) == 2


async def test_an_address_may_end_in_v1_or_not(server: OpenAIUpstream):
    for url in (server.url, server.url + "/", server.url.removesuffix("/v1")):
        upstream = Upstream(url)
        assert text_of(await answer(server, upstream, chat(), whole("a"))) == "a"
        await upstream.aclose()

    assert {sent.path for sent in server.completions} == {"/v1/chat/completions"}


# Pieces


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_a_stream_cut_anywhere_is_the_same_stream(
    server: OpenAIUpstream, upstream: Upstream, size: int
):
    body = role() + text("né 🙂") + b": keep-alive\n\n" + text("漢字") + finish() + usage(2, 2) + DONE
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    events = await answer(server, upstream, streamed(), Script(pieces))

    assert text_of(events) == "né 🙂漢字"
    assert finished_of(events).usage == Usage(2, 2)


async def test_raw_utf8_that_two_reads_share_is_whole_again(server: OpenAIUpstream, upstream: Upstream):
    body = sse(json.dumps({"choices": [{"delta": {"content": "🙂"}}]}, ensure_ascii=False).encode())
    middle = body.index("🙂".encode()) + 2
    events = await answer(
        server, upstream, streamed(), stream(body[:middle], body[middle:], finish(), usage(1, 1))
    )

    assert text_of(events) == "🙂"


@pytest.mark.parametrize(
    "odd",
    [
        b": comment\n\n",
        b"\n\n",
        sse({"choices": []}),
        sse({"choices": None}),
        sse({"id": "x", "error": None, "choices": []}),
        sse({}),
        chunk({}),
        chunk({"content": None, "role": "assistant", "tool_calls": None}),
        chunk({"content": ""}),
        sse({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}),
        sse({"choices": [{"index": 0, "delta": {}, "logprobs": None, "unheard": [1, {"of": 2}]}]}),
        b"event: ping\ndata: {}\n\n",
    ],
)
async def test_what_brings_nothing_changes_nothing(server: OpenAIUpstream, upstream: Upstream, odd: bytes):
    events = await answer(
        server, upstream, streamed(), stream(odd, text("a"), odd, text("b"), odd, finish(), odd, usage(1, 2))
    )

    assert [e.text for e in events if isinstance(e, TextDelta)] == ["a", "b"]
    assert [type(e) for e in events].count(Started) == 1


# Usage


async def test_a_usage_inside_the_finish_chunk_counts(server: OpenAIUpstream, upstream: Upstream):
    end = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": counts(4, 1)})

    assert finished_of(await answer(server, upstream, streamed(), stream(text("a"), end))).usage == Usage(
        4, 1
    )


async def test_a_usage_after_the_end_mark_counts(server: OpenAIUpstream, upstream: Upstream):
    script = Script([text("a"), finish(), DONE, usage(4, 1)])

    assert finished_of(await answer(server, upstream, streamed(), script)).usage == Usage(4, 1)


async def test_a_usage_that_never_comes_is_counted_and_marked(
    server: OpenAIUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "USAGE_WAIT_S", 0.01)
    script = Script([text("a"), text("b"), finish(), DONE, Hang()])
    used = finished_of(await answer(server, upstream, streamed(), script)).usage

    assert (used.completion_tokens, used.is_estimated) == (2, True)
    assert used.prompt_tokens > 0


async def test_a_whole_answer_without_usage_is_counted_and_marked(server: OpenAIUpstream, upstream: Upstream):
    script = document({"choices": [{"message": {"content": "word " * 8}, "finish_reason": "stop"}]})
    used = finished_of(await answer(server, upstream, chat(), script)).usage

    assert (used.completion_tokens, used.is_estimated) == (10, True)


async def test_the_details_of_a_usage_are_kept(server: OpenAIUpstream, upstream: Upstream):
    details = {
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    script = stream(text("a"), finish(), usage(4, 5, **details))

    assert finished_of(await answer(server, upstream, streamed(), script)).usage == Usage(4, 5, 3, 2)


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
async def test_details_may_be_missing(server: OpenAIUpstream, upstream: Upstream, details: Any):
    script = stream(text("a"), finish(), usage(4, 5, prompt_tokens_details=details))

    assert finished_of(await answer(server, upstream, streamed(), script)).usage == Usage(4, 5)


# Echo


@pytest.mark.parametrize("stream_", [False, True])
async def test_an_echoed_text_comes_before_the_answer(
    server: OpenAIUpstream, upstream: Upstream, stream_: bool
):
    choice = {"index": 0, "text": " river", "finish_reason": "length"}
    script = (
        stream(sse({"choices": [choice]}), usage(2, 1))
        if stream_
        else document({"choices": [choice], "usage": counts(2, 1)})
    )
    wanted = request("card", TextPrompt(text="One1"), echo=True, stream=stream_, stop=("1",))
    events = await answer(server, upstream, wanted, script)

    assert text_of(events) == "One1 river"
    assert [e.num_tokens for e in events if isinstance(e, TextDelta)] == [0, 1]


async def test_an_echo_of_the_server_is_not_searched_for_stops(server: OpenAIUpstream, upstream: Upstream):
    lists = {"tokens": ["a1", "b", "2"], "token_logprobs": [None, -1.0, -2.0], "top_logprobs": [None, {}, {}]}
    choice = {"index": 0, "text": "a1b2", "finish_reason": "length", "logprobs": lists}
    wanted = request("card", TextPrompt(text="a1"), echo=True, logprobs=0, stop=("1", "2"))
    events = await answer(server, upstream, wanted, document({"choices": [choice], "usage": counts(1, 2)}))

    assert text_of(events) == "a1b"
    assert math.isnan(logprobs_of(events)[0].chosen.logprob)


async def test_an_echo_of_token_ids_is_the_servers(server: OpenAIUpstream, upstream: Upstream):
    choice = {"index": 0, "text": "a1b", "finish_reason": "length"}
    wanted = request("card", TokenPrompt(token_ids=[1]), echo=True, stop=("1",))
    events = await answer(server, upstream, wanted, document({"choices": [choice], "usage": counts(1, 1)}))

    assert text_of(events) == "a1b"


# Log probabilities


async def test_chats_logprobs_keep_their_bytes_and_fall(server: OpenAIUpstream, upstream: Upstream):
    top = [entry("b", -2.0), {"token": "�", "logprob": -0.5, "bytes": [240, 159]}, entry("c", -3.0)]
    content = {"content": [{**entry("b", -2.0), "top_logprobs": top}]}
    script = stream(text("b", logprobs=content), finish(), usage(1, 1))
    events = await answer(server, upstream, streamed(logprobs=2), script)
    (logprob,) = logprobs_of(events)

    assert (logprob.chosen.token, logprob.chosen.logprob) == (b"b", -2.0)
    assert [(one.token, one.logprob) for one in logprob.top] == [(b"\xf0\x9f", -0.5), (b"b", -2.0)]


async def test_completions_logprobs_are_parallel_lists(server: OpenAIUpstream, upstream: Upstream):
    lists = {
        "tokens": [" a", "bytes:\\xf0\\x9f"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{" b": -0.5, " a": -1.0, " c": -4.0}, None],
        "text_offset": [0, 2],
    }
    choice = {"index": 0, "text": " a", "finish_reason": "length", "logprobs": lists}
    wanted = request("card", logprobs=2)
    first, second = logprobs_of(
        await answer(server, upstream, wanted, document({"choices": [choice], "usage": counts(1, 2)}))
    )

    assert [(one.token, one.logprob) for one in first.top] == [(b" b", -0.5), (b" a", -1.0)]
    assert (second.chosen.token, second.top) == (b"\xf0\x9f", ())


async def test_logprobs_of_tokens_without_text_come_with_the_next_text_or_the_end(
    server: OpenAIUpstream, upstream: Upstream
):
    def scored(token: str) -> dict[str, Any]:
        return {"content": [entry(token, -1.0)]}

    script = stream(
        text("", logprobs=scored("a")),
        text("ab", logprobs=scored("b")),
        finish("stop", logprobs=scored("</s>")),
        usage(1, 3),
    )
    events = await answer(server, upstream, streamed(logprobs=0), script)
    delta = next(e for e in events if isinstance(e, TextDelta))

    assert delta.num_tokens == 2
    assert [len(e.logprobs or ()) for e in events if isinstance(e, TextDelta | ChoiceFinished)] == [2, 1]


async def test_llama_server_answers_completions_in_chats_form(server: OpenAIUpstream, upstream: Upstream):
    choice = {
        "index": 0,
        "text": "a",
        "finish_reason": "length",
        "logprobs": {"content": [{**entry("a", -1.0), "top_logprobs": []}]},
    }
    events = await answer(
        server, upstream, request("card", logprobs=1), document({"choices": [choice], "usage": counts(1, 1)})
    )

    assert logprobs_of(events)[0].chosen.token == b"a"
