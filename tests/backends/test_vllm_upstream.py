"""What a server answers, as our events: whole and streamed, regular and odd."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest

from backends.errors import (
    BackendFailed,
    BackendUnavailable,
    NotSupported,
    UpstreamError,
    UpstreamRateLimited,
)
from backends.types import (
    ChatPrompt,
    ChoiceFinished,
    Event,
    EventBatch,
    GenerationRequest,
    ReasoningDelta,
    Started,
    TextDelta,
    TextPrompt,
    TokenPrompt,
    ToolCallDelta,
    Usage,
)
from backends.vllm import reading, transport
from backends.vllm import upstream as upstream_module
from backends.vllm.listing import ServedModel
from backends.vllm.upstream import Upstream
from tests.backends.contract import CHAT, endings_of, finished_of, logprobs_of, request, text_of
from tests.backends.openai_upstream import (
    DONE,
    Close,
    Hang,
    OpenAIUpstream,
    Script,
    Wait,
    chunk,
    counts,
    document,
    finish,
    refused,
    role,
    sse,
    stream,
    text,
    usage,
    whole,
)

FIVE = ("1", "2", "3", "4", "5")


@pytest.fixture
async def server() -> AsyncIterator[OpenAIUpstream]:
    async with OpenAIUpstream() as server:
        yield server


@pytest.fixture
async def upstream(server: OpenAIUpstream) -> AsyncIterator[Upstream]:
    upstream = Upstream(server.url, api_key="sk-the-key")
    yield upstream
    await upstream.aclose()


def chat(**fields: Any) -> GenerationRequest:
    return request("card", CHAT, **{"temperature": 1.0, "max_tokens": None, **fields})


def streamed(**fields: Any) -> GenerationRequest:
    return chat(stream=True, **fields)


async def batches_of(upstream: Upstream, wanted: GenerationRequest) -> list[EventBatch]:
    async with asyncio.timeout(10):
        return [batch async for batch in upstream.generate(wanted, served_name="m")]


async def events_of(upstream: Upstream, wanted: GenerationRequest) -> list[Event]:
    return [event for batch in await batches_of(upstream, wanted) for event in batch]


async def answer(
    server: OpenAIUpstream, upstream: Upstream, wanted: GenerationRequest, script: Script
) -> list[Event]:
    server.answers(script)
    return await events_of(upstream, wanted)


def reasoning_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def calls_of(events: Sequence[Event]) -> list[ToolCallDelta]:
    return [event for event in events if isinstance(event, ToolCallDelta)]


async def first_of(generator: AsyncGenerator[EventBatch, None]) -> EventBatch:
    async with asyncio.timeout(10):
        return await anext(generator)


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


# Connections


async def test_a_connection_serves_one_request_after_another(server: OpenAIUpstream, upstream: Upstream):
    """A second one is made where a request follows so closely that the last body's end has not arrived."""
    for _ in range(3):
        await answer(server, upstream, streamed(), stream(text("a"), finish(), usage(1, 1)))
        await answer(server, upstream, chat(), whole("a"))

    assert server.num_connections <= 2


async def test_a_finished_stream_does_not_wait_for_the_end_of_its_body(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(Script([text("a"), finish(), usage(1, 1), DONE, Hang()]))

    assert text_of(await events_of(upstream, streamed())) == "a"


async def test_a_body_that_never_ends_costs_its_connection_only(
    server: OpenAIUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("backends.link.LINGER_S", 0.01)
    await answer(server, upstream, streamed(), Script([text("a"), finish(), usage(1, 1), DONE, Hang()]))

    async with asyncio.timeout(5):
        await server.completions[0].closed.wait()
    assert text_of(await answer(server, upstream, chat(), whole("b"))) == "b"


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(
    server: OpenAIUpstream, upstream: Upstream
):
    await answer(server, upstream, chat(), whole("a"))
    server.answers(Script([Close()], framing="raw"))

    assert text_of(await answer(server, upstream, chat(), whole("b"))) == "b"


async def test_a_body_without_a_length_ends_with_the_connection(server: OpenAIUpstream, upstream: Upstream):
    script = Script([text("a") + finish(), usage(1, 1) + DONE], framing="none")

    assert text_of(await answer(server, upstream, streamed(), script)) == "a"


async def test_a_document_without_a_length_is_read_to_its_end(server: OpenAIUpstream, upstream: Upstream):
    script = whole("a")
    script.framing = "none"

    assert text_of(await answer(server, upstream, chat(), script)) == "a"


async def test_an_interim_response_is_skipped(server: OpenAIUpstream, upstream: Upstream):
    body = whole("a").steps[0]
    assert isinstance(body, bytes)
    raw = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    raw += b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)

    assert text_of(await answer(server, upstream, chat(), Script([raw + body], framing="raw"))) == "a"


async def test_a_second_response_that_nobody_asked_for_is_nobodys(server: OpenAIUpstream, upstream: Upstream):
    def response(word: str) -> bytes:
        body = json.dumps({"choices": [{"message": {"content": word}, "finish_reason": "stop"}]}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        return head % len(body) + body

    first = await answer(
        server, upstream, chat(), Script([response("mine") + response("theirs")], framing="raw")
    )
    second = await answer(server, upstream, chat(), whole("next"))

    assert (text_of(first), text_of(second)) == ("mine", "next")


async def test_trailers_are_no_headers(server: OpenAIUpstream, upstream: Upstream):
    head = b"HTTP/1.1 429 No\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"2\r\n{}\r\n0\r\nretry-after: 99\r\n\r\n"

    with pytest.raises(UpstreamRateLimited) as limited:
        await answer(server, upstream, chat(), Script([head + body], framing="raw"))
    assert limited.value.retry_after_s is None


async def test_a_head_without_end_is_no_answer(server: OpenAIUpstream, upstream: Upstream):
    raw = b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000
    server.answers(Script([raw, Hang()], framing="raw"))

    with pytest.raises(UpstreamError):
        await events_of(upstream, chat())


async def test_what_is_no_http_is_said_so(server: OpenAIUpstream, upstream: Upstream):
    await upstream.models()
    server.answers(Script([b"SSH-2.0-OpenSSH_9.6\r\n"], framing="raw"))

    with pytest.raises(UpstreamError, match="no HTTP"):
        await events_of(upstream, chat())


async def test_nobody_listening_is_unavailable(server: OpenAIUpstream, upstream: Upstream):
    await server.stop()

    with pytest.raises(BackendUnavailable, match="Connection refused"):
        await events_of(upstream, chat())


@pytest.mark.parametrize("url", ["ftp://host", "nonsense"])
def test_an_address_that_is_none_is_refused_at_once(url: str):
    with pytest.raises(ValueError, match="address"):
        Upstream(url)


# Ending early


async def test_closing_the_generator_closes_the_connection_at_once(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(Script([text("a"), Hang()]))
    generator = upstream.generate(streamed(), served_name="m")
    await first_of(generator)
    running = upstream.running
    await generator.aclose()

    async with asyncio.timeout(2):
        await server.completions[0].closed.wait()
    assert (running, upstream.running) == (1, 0)


@pytest.mark.parametrize("wanted", [chat(), streamed()])
async def test_a_reader_that_is_cancelled_before_any_answer_closes_the_connection(
    server: OpenAIUpstream, upstream: Upstream, wanted: GenerationRequest
):
    await upstream.models()
    server.answers(Script([Hang()], framing="raw"))
    task = asyncio.create_task(events_of(upstream, wanted))
    async with asyncio.timeout(2):
        while not server.completions:  # noqa: ASYNC110 - it arrives in another task
            await asyncio.sleep(0)
        task.cancel()
        await server.completions[0].closed.wait()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert upstream.running == 0


async def test_an_abort_closes_the_connection_and_ends_the_generator_with_an_error(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(Script([text("a"), Hang()]))
    wanted = streamed()
    generator = upstream.generate(wanted, served_name="m")
    await first_of(generator)
    await upstream.abort(wanted.request_id)
    await upstream.abort("unknown")

    with pytest.raises(BackendFailed, match="aborted"):
        await first_of(generator)
    async with asyncio.timeout(2):
        await server.completions[0].closed.wait()


@pytest.mark.parametrize("end", ["abort", "aclose"])
async def test_a_call_that_has_no_answer_yet_is_ended_too(
    server: OpenAIUpstream, upstream: Upstream, end: str
):
    await upstream.models()
    server.answers(Script([Hang()], framing="raw"))
    wanted = chat()
    task = asyncio.create_task(events_of(upstream, wanted))
    while not server.completions:  # noqa: ASYNC110 - it arrives in another task
        await asyncio.sleep(0)
    await (upstream.abort(wanted.request_id) if end == "abort" else upstream.aclose())

    with pytest.raises(BackendFailed, match="aborted"):
        await task
    async with asyncio.timeout(2):
        await server.completions[0].closed.wait()


async def test_aclose_ends_what_runs_and_refuses_what_comes(server: OpenAIUpstream, upstream: Upstream):
    server.answers(Script([text("a"), Hang()]))
    generator = upstream.generate(streamed(), served_name="m")
    await first_of(generator)
    await upstream.aclose()
    await upstream.aclose()

    with pytest.raises(BackendFailed):
        await first_of(generator)
    with pytest.raises(BackendUnavailable):
        await events_of(upstream, chat())


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


# Reasoning and tools


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_under_either_name_is_kept_apart(
    server: OpenAIUpstream, upstream: Upstream, name: str
):
    of_stream = await answer(
        server,
        upstream,
        streamed(),
        stream(
            role(), chunk({name: "hm"}), chunk({name: "m", "content": None}), text("a"), finish(), usage(1, 3)
        ),
    )
    message = {"role": "assistant", name: "hmm", "content": "a"}
    of_document = await answer(
        server,
        upstream,
        chat(),
        document({"choices": [{"message": message, "finish_reason": "stop"}], "usage": counts(1, 3)}),
    )

    for events in (of_stream, of_document):
        assert (reasoning_of(events), text_of(events)) == ("hmm", "a")


def call(
    arguments: Any = None, name: str | None = None, id: str | None = None, index: int | None = 0
) -> dict[str, Any]:
    function = {k: v for k, v in {"name": name, "arguments": arguments}.items() if v is not None}
    whole = {"index": index, "id": id, "type": "function", "function": function}
    return {k: v for k, v in whole.items() if v is not None}


def calling(*deltas: list[dict[str, Any]]) -> Script:
    return stream(
        role(), *(chunk({"tool_calls": calls}) for calls in deltas), finish("tool_calls"), usage(1, 9)
    )


async def test_a_tool_call_is_announced_once_and_goes_on_with_arguments(
    server: OpenAIUpstream, upstream: Upstream
):
    script = calling([call("", "f", "c1")], [call('{"a"')], [call(": 1}")])
    events = await answer(server, upstream, streamed(), script)

    assert calls_of(events) == [
        ToolCallDelta(0, 0, "", "c1", "f"),
        ToolCallDelta(0, 0, '{"a"'),
        ToolCallDelta(0, 0, ": 1}"),
    ]
    assert endings_of(events)[0].finish_reason == "tool_calls"


async def test_several_calls_of_one_chunk_are_numbered(server: OpenAIUpstream, upstream: Upstream):
    script = calling([call("{}", "f", "c1", 0), call("{}", "g", "c2", 1)])
    events = await answer(server, upstream, streamed(), script)

    assert [(c.call_index, c.id, c.name, c.arguments) for c in calls_of(events)] == [
        (0, "c1", "f", "{}"),
        (1, "c2", "g", "{}"),
    ]


async def test_a_call_without_an_id_gets_one(server: OpenAIUpstream, upstream: Upstream):
    events = await answer(server, upstream, streamed(), calling([call("{}", "f"), call("{}", "g", index=1)]))
    ids = [c.id for c in calls_of(events)]

    assert all(id_ and id_.startswith("call_") for id_ in ids)
    assert len(set(ids)) == 2


async def test_calls_without_an_index_are_told_apart_by_their_ids(server: OpenAIUpstream, upstream: Upstream):
    script = calling(
        [call('{"a":', "f", "c1", None)], [call("1}", index=None)], [call("{}", "g", "c2", None)]
    )
    events = await answer(server, upstream, streamed(), script)

    assert [(c.call_index, c.arguments) for c in calls_of(events)] == [(0, '{"a":'), (0, "1}"), (1, "{}")]


async def test_calls_that_all_have_the_index_0_are_told_apart_by_their_ids(
    server: OpenAIUpstream, upstream: Upstream
):
    script = calling([call("{}", "f", "c1", 0)], [call("{}", "f", "c2", 0)])
    events = await answer(server, upstream, streamed(), script)

    assert [c.call_index for c in calls_of(events)] == [0, 1]


async def test_ids_and_names_that_are_repeated_are_dropped(server: OpenAIUpstream, upstream: Upstream):
    script = calling([call("{", "f", "c1")], [call("}", "f", "c1")])
    events = await answer(server, upstream, streamed(), script)

    assert [(c.id, c.name) for c in calls_of(events)] == [("c1", "f"), (None, None)]


async def test_arguments_before_the_name_wait_for_it(server: OpenAIUpstream, upstream: Upstream):
    script = calling([call("{", None, "c1")], [call("}", "f")])
    events = await answer(server, upstream, streamed(), script)

    assert calls_of(events) == [ToolCallDelta(0, 0, "{}", "c1", "f", 2)]


async def test_arguments_that_are_an_object_become_json(server: OpenAIUpstream, upstream: Upstream):
    message = {"content": None, "tool_calls": [call({"city": "Köln"}, "f", "c1", None)]}
    script = document(
        {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": counts(1, 1)}
    )
    events = await answer(server, upstream, chat(), script)

    assert json.loads(calls_of(events)[0].arguments) == {"city": "Köln"}


async def test_a_call_that_never_gets_a_name_is_an_error(server: OpenAIUpstream, upstream: Upstream):
    with pytest.raises(UpstreamError, match="without a name"):
        await answer(server, upstream, streamed(), calling([call("{}", None, "c1")]))


@pytest.mark.parametrize(
    ("content", "reason", "expected"),
    [("", "stop", "tool_calls"), ("Let me look.", "stop", "stop"), ("", "length", "length")],
)
async def test_a_choice_of_nothing_but_calls_ends_with_them_although_the_server_says_stop(
    server: OpenAIUpstream, upstream: Upstream, content: str, reason: str, expected: str
):
    calls = [call("{}", "f", "c1")]
    message = {"content": content, "tool_calls": calls}
    of_stream = stream(text(content), chunk({"tool_calls": calls}), finish(reason), usage(1, 9))
    of_document = document(
        {"choices": [{"message": message, "finish_reason": reason}], "usage": counts(1, 9)}
    )

    for wanted, script in ((streamed(), of_stream), (chat(), of_document)):
        events = await answer(server, upstream, wanted, script)
        assert endings_of(events)[0].finish_reason == expected


async def test_the_end_of_a_text_is_no_tool_call(server: OpenAIUpstream, upstream: Upstream):
    events = await answer(server, upstream, streamed(), stream(text("a"), finish("stop"), usage(1, 1)))

    assert endings_of(events)[0].finish_reason == "stop"


# Stops


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


def entry(token: str, logprob: float, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), **more}


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


# Answers that make no sense


@pytest.mark.parametrize(
    "script",
    [
        Script([b"<html><h1>502 Bad Gateway</h1>"], headers={"content-type": "text/html"}),
        document(b'{"choices": [{"mess'),
        document(b"[]"),
        document({"choices": [{"message": {"content": 7}, "finish_reason": "stop"}]}),
        document({"choices": []}),
        document({}),
        whole("a", None),
        whole("a", "abort"),
        whole("a", "error"),
        stream(text("a")),
        stream(text("a"), finish(None)),
        stream(text("a"), finish("abort"), usage(1, 1)),
        stream(text("a"), finish("nonsense"), usage(1, 1)),
        stream(text("a"), finish("stop", 3)),
        stream(text("a"), b"data: {nonsense\n\n"),
        stream(text("a"), sse(b'{"choices": [{"delta": {"content": "\xff"}}]}')),
        Script([text("a")]),
        Script([text("a"), Close()]),
        whole("a", ""),
        whole("a", stop_reason=1 << 64),
        stream(text("a"), finish(), usage(-1, 1)),
        stream(text("a"), finish(), usage(1, 10**30)),
        Script([b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx"], framing="raw"),
        Script([b"hello"], headers={"content-type": "text/plain"}, framing="length"),
        Script([b""], headers={"content-type": ""}),
        stream(),
    ],
)
@pytest.mark.parametrize("wanted", [chat(), streamed()])
async def test_nonsense_is_an_error_and_never_an_answer(
    server: OpenAIUpstream, upstream: Upstream, script: Script, wanted: GenerationRequest
):
    with pytest.raises(UpstreamError):
        await answer(server, upstream, wanted, script)


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [{"token": 5}]},
        {"content": [entry("a", -1.0) | {"bytes": [300]}]},
        {"content": [entry("a", -1.0) | {"bytes": [10**30]}]},
        {"tokens": [["a"]]},
        [],
    ],
)
async def test_log_probabilities_that_make_no_sense_are_the_servers_fault(
    server: OpenAIUpstream, upstream: Upstream, logprobs: Any
):
    with pytest.raises(UpstreamError, match="log probabilities make no sense"):
        await answer(server, upstream, chat(logprobs=1), whole("a", logprobs=logprobs))


async def test_an_empty_finish_reason_is_none_yet(server: OpenAIUpstream, upstream: Upstream):
    script = stream(text("a", finish_reason=""), text("b", finish_reason=""), finish(), usage(1, 2))
    events = await answer(server, upstream, streamed(), script)

    assert (text_of(events), endings_of(events)[0].finish_reason) == ("ab", "stop")


async def test_a_choice_that_is_missing_makes_the_answer_incomplete(
    server: OpenAIUpstream, upstream: Upstream
):
    with pytest.raises(UpstreamError, match="before it was complete"):
        await answer(server, upstream, chat(n=2), whole("a"))


async def test_what_came_before_the_nonsense_is_delivered(server: OpenAIUpstream, upstream: Upstream):
    server.answers(Script([text("a"), Close()]))
    generator = upstream.generate(streamed(), served_name="m")
    batch = await first_of(generator)

    with pytest.raises(UpstreamError, match="broke off"):
        await first_of(generator)
    assert text_of(batch) == "a"


async def test_an_end_without_the_end_mark_is_an_end(server: OpenAIUpstream, upstream: Upstream):
    events = await answer(server, upstream, streamed(), Script([text("a"), finish(), usage(1, 1)]))

    assert finished_of(events).usage == Usage(1, 1)


async def test_a_stream_where_a_document_was_asked_for_is_read(server: OpenAIUpstream, upstream: Upstream):
    assert text_of(await answer(server, upstream, chat(), stream(text("a"), finish(), usage(1, 1)))) == "a"


async def test_a_document_where_a_stream_was_asked_for_is_read(server: OpenAIUpstream, upstream: Upstream):
    assert text_of(await answer(server, upstream, streamed(), whole("a"))) == "a"


async def test_an_answer_beyond_the_limit_is_not_read(
    server: OpenAIUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1000)

    with pytest.raises(UpstreamError, match="longer than 1000 bytes"):
        await answer(server, upstream, chat(), whole("a" * 2000))


async def test_a_silence_is_waited_for(server: OpenAIUpstream, upstream: Upstream):
    go_on = asyncio.Event()
    server.answers(stream(text("a"), Wait(go_on), text("b"), finish(), usage(1, 2)))
    generator = upstream.generate(streamed(), served_name="m")
    await first_of(generator)
    pending = asyncio.ensure_future(anext(generator))
    for _ in range(50):
        await asyncio.sleep(0)
    waited = not pending.done()
    go_on.set()

    assert waited
    assert text_of(await pending) == "b"
    await generator.aclose()


# The other routes


async def test_the_models_are_those_that_can_be_named(server: OpenAIUpstream, upstream: Upstream):
    server.models = [
        {"id": "Qwen/Qwen3", "max_model_len": 4096},
        {"id": "ours", "context_length": 77, "capabilities": ["embeddings", "sorcery"]},
        {"id": "llama", "meta": {"n_ctx": 512}},
        {"id": "plain", "max_model_len": None},
        *({"id": name} for name in ("../x", "", 7, "a\x00b", "x" * 300, "http://x")),
        {"id": "odd", "max_model_len": "4096"},
        "nonsense",  # type: ignore[list-item]
    ]

    assert await upstream.models() == [
        ServedModel("Qwen/Qwen3", 4096),
        ServedModel("ours", 77, ("embeddings",)),
        ServedModel("llama", 512),
        ServedModel("plain"),
        ServedModel("odd"),
    ]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 7}', b"{}"])
async def test_a_list_of_models_that_makes_no_sense_is_an_error(
    server: OpenAIUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, body: bytes
):
    monkeypatch.setattr(server, "_script_for", lambda _: document(body))

    with pytest.raises(UpstreamError):
        await upstream.models()


async def test_tokens_are_counted_by_the_server(server: OpenAIUpstream, upstream: Upstream):
    counted = [await upstream.count_tokens("m", prompt) for prompt in (CHAT, TextPrompt(text="a"))]
    chat_call, text_call = (one for one in server.received if one.path == "/tokenize")

    assert counted == [7, 7]
    assert (chat_call.body["messages"], text_call.body["prompt"]) == (CHAT.messages, "a")
    assert await upstream.count_tokens("m", TokenPrompt(token_ids=[1, 2])) == 2


async def test_a_server_that_cannot_count_says_so(server: OpenAIUpstream, upstream: Upstream):
    server.token_count = None

    with pytest.raises(NotSupported):
        await upstream.count_tokens("m", CHAT)


async def test_health_is_the_servers_own_word(server: OpenAIUpstream, upstream: Upstream):
    well = await upstream.ailment(timeout_s=10) is None
    server.health_status = 503

    assert well
    assert not await upstream.is_healthy()


async def test_a_server_without_a_health_route_is_well_when_it_lists_models(
    server: OpenAIUpstream, upstream: Upstream
):
    server.health_status = 404

    assert await upstream.is_healthy()


async def test_a_server_that_is_gone_or_silent_is_not_well(
    server: OpenAIUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upstream_module, "HEALTH_TIMEOUT_S", 0.02)
    monkeypatch.setattr(server, "_script_for", lambda _: Script([Hang()], framing="raw"))
    silent = await upstream.ailment()
    await server.stop()

    assert silent == "The server does not answer"
    assert await upstream.ailment() == "Connection refused"


async def test_the_metrics_are_passed_on_or_empty(server: OpenAIUpstream, upstream: Upstream):
    there = await upstream.metrics()
    await server.stop()

    assert there == b"vllm:up 1\n"
    assert await upstream.metrics() == b""


async def test_a_call_gives_status_headers_and_body(server: OpenAIUpstream, upstream: Upstream):
    server.answers(document({"data": []}, 418, x_tea="yes"))
    status, headers, body = await upstream.call("POST", "/v1/completions", b"{}")

    assert (status, headers[b"x-tea"], body) == (418, b"yes", b'{"data": []}')


# What a server does not take


async def test_the_injected_template_variable_is_dropped_once_for_a_server_that_does_not_know_it(
    server: OpenAIUpstream, upstream: Upstream
):
    prompt = ChatPrompt(messages=CHAT.messages, template_kwargs={"enable_thinking": False})
    server.answers(refused(400, "Unrecognized request argument supplied: chat_template_kwargs"))
    server.answers(whole("a"), whole("b"))
    first = await events_of(upstream, request("card", prompt))
    second = await events_of(upstream, request("card", prompt))

    assert (text_of(first), text_of(second)) == ("a", "b")
    assert ["chat_template_kwargs" in one.body for one in server.completions] == [True, False, False]


async def test_a_callers_template_variable_is_never_dropped(server: OpenAIUpstream, upstream: Upstream):
    prompt = ChatPrompt(messages=CHAT.messages, template_kwargs={"enable_thinking": True})
    server.answers(refused(400, "Unrecognized request argument supplied: chat_template_kwargs"))

    with pytest.raises(Exception, match="chat_template_kwargs"):
        await events_of(upstream, request("card", prompt))
    assert len(server.completions) == 1


async def test_a_server_without_usage_in_streams_is_not_asked_again(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(refused(422, "Extra inputs are not permitted", param="stream_options"))
    server.answers(stream(text("a"), finish()))
    events = await events_of(upstream, streamed())

    assert text_of(events) == "a"
    assert ["stream_options" in one.body for one in server.completions] == [True, False]


async def test_a_model_that_wants_the_new_name_of_the_limit_gets_it(
    server: OpenAIUpstream, upstream: Upstream
):
    message = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    server.answers(refused(400, message, code="unsupported_parameter", param="max_tokens"), whole("a"))
    await events_of(upstream, chat(max_tokens=9))

    assert server.completions[1].body["max_completion_tokens"] == 9


async def test_a_refusal_that_repeats_itself_is_not_tried_for_ever(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(*[refused(400, "unknown field stream_options") for _ in range(9)])

    with pytest.raises(Exception, match="stream_options"):
        await events_of(upstream, streamed())
    assert len(server.completions) == 2


async def test_an_answer_that_does_not_fit_behind_its_prompt_is_asked_for_again_with_what_fits(
    server: OpenAIUpstream, upstream: Upstream
):
    message = (
        "This model's maximum context length is 1000 tokens. However, you requested 900 output tokens and your "
        "prompt contains at least 101 input tokens, for a total of at least 1001 tokens."
    )
    server.token_count = 400
    server.answers(refused(400, message), whole("a", "length"))
    events = await events_of(upstream, chat(max_tokens=900))

    assert endings_of(events)[0].finish_reason == "length"
    assert server.completions[1].body["max_tokens"] == 600


async def test_a_list_of_prompts_of_which_one_leaves_little_room_is_answered_one_by_one(
    server: OpenAIUpstream, upstream: Upstream
):
    message = (
        "This model's maximum context length is 1000 tokens. However, you requested 996 output tokens and your "
        "prompt contains 7 input tokens, for a total of 1003 tokens."
    )
    choice = {"index": 0, "finish_reason": "length"}
    server.answers(
        refused(400, message),
        document({"choices": [{**choice, "text": "a"}], "usage": counts(7, 1)}),
        refused(400, message),
        document({"choices": [{**choice, "text": "b"}], "usage": counts(7, 2)}),
    )
    wanted = request("card", [TextPrompt(text="x"), TextPrompt(text="y")], n=2, max_tokens=996)
    events = await events_of(upstream, wanted)

    assert [text_of(events, i) for i in range(4)] == ["a", "a", "b", "b"]
    assert finished_of(events).usage == Usage(14, 6)
    assert [type(e) for e in events].count(Started) == 1
    assert [one.body["max_tokens"] for one in server.completions] == [996, 996, 996, 993]


async def test_a_limit_beyond_the_context_that_the_server_names_is_lowered(
    server: OpenAIUpstream, upstream: Upstream
):
    server.models = None
    message = "max_tokens=5000 cannot be greater than max_model_len=1000. Please request fewer output tokens."
    server.answers(refused(400, message, param="max_tokens"), whole("a", "length"))
    await events_of(upstream, chat(max_tokens=5000))

    assert server.completions[1].body["max_tokens"] == 993


LLAMA = [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 1000}}]


async def test_several_choices_of_llama_server_are_counted_here(server: OpenAIUpstream, upstream: Upstream):
    """It counts the first."""
    server.models = LLAMA
    script = stream(text("a"), text("b", 1), text("b", 1), finish("stop"), finish("stop", 1), usage(9, 1))
    events = await answer(server, upstream, chat(n=2), script)

    assert finished_of(events).usage == Usage(9, 3, is_estimated=True)


async def test_lists_of_prompts_go_to_llama_server_one_by_one(server: OpenAIUpstream, upstream: Upstream):
    server.models = LLAMA
    choice = {"index": 0, "finish_reason": "length"}
    server.answers(
        document({"choices": [{**choice, "text": "a"}], "usage": counts(7, 1)}),
        document({"choices": [{**choice, "text": "b"}], "usage": counts(5, 2)}),
    )
    events = await events_of(upstream, request("card", [TextPrompt(text="x"), TextPrompt(text="y")]))

    assert [text_of(events, i) for i in range(2)] == ["a", "b"]
    assert finished_of(events).usage == Usage(12, 3)


async def test_closing_closes_a_connection_whose_body_has_not_ended(
    server: OpenAIUpstream, upstream: Upstream
):
    await answer(server, upstream, streamed(), Script([text("a"), finish(), usage(1, 1), DONE, Hang()]))
    await upstream.aclose()

    async with asyncio.timeout(0.5):
        await server.completions[0].closed.wait()
