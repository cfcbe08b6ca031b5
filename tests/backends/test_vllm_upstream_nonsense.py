"""Answers that make no sense are errors and never answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backends.errors import UpstreamError
from backends.types import GenerationRequest, Usage
from backends.vllm import transport
from backends.vllm.upstream import Upstream
from tests.backends.contract import endings_of, finished_of, text_of
from tests.backends.openai_upstream import (
    Close,
    OpenAIUpstream,
    Script,
    Wait,
    document,
    finish,
    sse,
    stream,
    text,
    usage,
    whole,
)
from tests.backends.upstream_answers import answer, chat, entry, first_of, streamed


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
