"""The connections to a server: kept, replaced, and closed by whoever ends early."""

from __future__ import annotations

import asyncio
import json

import pytest

from backends.errors import BackendFailed, BackendUnavailable, UpstreamError, UpstreamRateLimited
from backends.types import GenerationRequest
from backends.vllm.upstream import Upstream
from tests.backends.contract import text_of
from tests.backends.openai_upstream import (
    DONE,
    Close,
    Hang,
    OpenAIUpstream,
    Script,
    finish,
    stream,
    text,
    usage,
    whole,
)
from tests.backends.upstream_answers import answer, chat, events_of, first_of, streamed

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


# What a server does not take


async def test_closing_closes_a_connection_whose_body_has_not_ended(
    server: OpenAIUpstream, upstream: Upstream
):
    await answer(server, upstream, streamed(), Script([text("a"), finish(), usage(1, 1), DONE, Hang()]))
    await upstream.aclose()

    async with asyncio.timeout(0.5):
        await server.completions[0].closed.wait()
