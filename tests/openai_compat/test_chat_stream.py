"""Streamed chat completions: frames, headers and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backends.errors import BackendFailed, BackendTimeout
from backends.types import ChoiceFinished, Finished, Started, TextDelta, TokenLogprob, TokenLogprobs, Usage
from tests.openai_compat.scripted_backend import Hang, Pause, ScriptedBackend, words
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import HELLO, Connection, Reply, call, chat, make_app


async def stream(script: Any = None, **fields: Any) -> Reply:
    backend = ScriptedBackend() if script is None else ScriptedBackend(script=script)
    return await chat(make_app(backend), stream=True, **fields)


def timed(script: Any, **config: Any) -> Reply:
    """A stream in virtual time."""
    return run_virtual(chat(make_app(ScriptedBackend(script=script), **config), stream=True))


async def test_a_stream_has_the_documented_frames() -> None:
    reply = await stream()

    chunks = reply.chunks
    head = {key: chunks[0][key] for key in ("id", "object", "created", "model")}
    assert head["object"] == "chat.completion.chunk"
    assert chunks == [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]


async def test_a_stream_has_the_headers_that_keep_proxies_from_buffering() -> None:
    headers = (await stream(wings=2)).headers

    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-llm-backend"] == "fake"
    assert headers["x-llm-ignored"] == "wings"
    assert "content-length" not in headers


async def test_a_client_of_http_1_0_gets_the_events_in_one_piece_with_their_length() -> None:
    body = {**HELLO, "stream": True}

    reply = await call(make_app(), "POST", "/v1/chat/completions", body, http_version="1.0")

    assert reply.headers["content-length"] == str(len(reply.body))
    assert len(reply.messages) == 2
    assert reply.text() == "Hello!"


async def test_a_batch_of_events_is_one_message() -> None:
    events = [Started(0.0, 5), *(TextDelta(0, str(i)) for i in range(9)), ChoiceFinished(0, "stop")]

    reply = await stream([events, [Finished(Usage(5, 9))]])

    bodies = [message for _, message in reply.messages if message["type"] == "http.response.body"]
    assert len(bodies) == 2
    assert reply.text() == "012345678"


async def test_a_choice_without_text_still_has_its_role_and_reason() -> None:
    reply = await stream([Started(0.0, 5), ChoiceFinished(0, "length"), Finished(Usage(5, 0))])

    choices = [chunk["choices"][0] for chunk in reply.chunks]
    assert [choice["delta"] for choice in choices] == [{"role": "assistant"}, {}]
    assert choices[-1]["finish_reason"] == "length"


async def test_every_choice_has_its_own_role_text_and_reason() -> None:
    reply = await stream(n=2, stream_options={"include_usage": True})

    for index in (0, 1):
        mine = [c for chunk in reply.chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant"}
        assert [c["finish_reason"] for c in mine] == [None, None, None, "stop"]
        assert reply.text(index) == "Hello!"


async def test_usage_comes_last_and_only_when_asked_for() -> None:
    chunks = (await stream(stream_options={"include_usage": True})).chunks

    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == (await chat(make_app())).json["usage"]
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks[:-1])


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_usage_is_absent_unasked(options: Any) -> None:
    chunks = (await stream(stream_options=options)).chunks

    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("text", ["😀🇩🇪", "日本語", 'a"b\\c\n\r\t\u2028\x00', "é"])
async def test_the_streams_text_is_the_text(text: str) -> None:
    assert (await stream(words(*text))).text() == text


async def test_logprobs_come_with_their_text_and_with_the_end() -> None:
    one = TokenLogprobs(TokenLogprob(b"x", -0.5))
    script = [
        Started(0.0, 5),
        TextDelta(0, "x", 1, (one,)),
        ChoiceFinished(0, "stop", None, (one,)),
        Finished(Usage(5, 2)),
    ]

    reply = await stream(script, logprobs=True)

    entry = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
    found = [chunk["choices"][0].get("logprobs") for chunk in reply.chunks]
    assert found == [None, {"content": [entry]}, {"content": [entry]}]


async def test_an_error_after_the_headers_is_a_frame_and_then_the_end() -> None:
    reply = await stream([Started(0.0, 5), TextDelta(0, "x"), BackendFailed("The engine failed")])

    assert reply.status == 200
    assert json.loads(reply.frames[-2])["error"]["code"] == "backend_error"
    assert reply.frames[-1] == "[DONE]"
    assert b'finish_reason":"' not in reply.body
    assert reply.messages[-1][1]["more_body"] is False


async def test_a_bug_after_the_headers_is_a_frame_without_its_words() -> None:
    reply = await stream([Started(0.0, 5), TextDelta(0, "x"), RuntimeError("secret")])

    assert json.loads(reply.frames[-2])["error"]["type"] == "server_error"
    assert b"secret" not in reply.body


async def test_a_stream_that_stops_short_ends_with_an_error() -> None:
    reply = await stream([Started(0.0, 5), TextDelta(0, "x")])

    assert "error" in json.loads(reply.frames[-2])


def test_headers_wait_for_the_first_content() -> None:
    reply = timed([Started(0.0, 5), Pause(3), *words("x")[1:]])

    assert reply.begun_at() == pytest.approx(1003)


def test_headers_wait_no_longer_than_the_hold() -> None:
    reply = timed([Started(0.0, 5), Pause(30), *words("x")[1:]], header_hold_s=5)

    assert reply.begun_at() == pytest.approx(1005)
    assert reply.text() == "x"


def test_an_error_within_the_hold_keeps_its_status() -> None:
    reply = timed([Started(0.0, 5), Pause(4.9), BackendTimeout("late")], header_hold_s=5)

    assert reply.status == 504


def test_an_error_after_the_hold_is_a_frame() -> None:
    reply = timed([Started(0.0, 5), Pause(6), BackendTimeout("late")], header_hold_s=5)

    assert reply.status == 200
    assert json.loads(reply.frames[0])["error"]["code"] == "timeout"


def test_silence_is_broken_by_comments() -> None:
    reply = timed(
        [Started(0.0, 5), TextDelta(0, "a"), Pause(40), TextDelta(0, "b"), *words()[1:]], keep_alive_s=15
    )

    comments = [at for at, message in reply.messages if message.get("body") == b": keep-alive\n\n"]
    assert comments == pytest.approx([1015, 1030])
    assert reply.text() == "ab"


def test_a_stream_that_is_never_silent_has_no_comments() -> None:
    steps = [step for i in range(40) for step in (Pause(1), TextDelta(0, str(i)))]

    reply = timed([Started(0.0, 5), *steps, *words()[1:]], keep_alive_s=15)

    assert b": keep-alive" not in reply.body


def test_a_late_first_token_is_a_timeout_with_its_status() -> None:
    reply = timed([Started(0.0, 5), Pause(50)], first_token_timeout_s=3)

    assert (reply.status, reply.error["code"]) == (504, "timeout")


def test_a_gap_between_tokens_is_a_timeout_frame() -> None:
    backend = ScriptedBackend(script=[Started(0.0, 5), TextDelta(0, "a"), Pause(50)])

    reply = run_virtual(chat(make_app(backend, idle_timeout_s=10), stream=True))

    assert json.loads(reply.frames[-2])["error"]["code"] == "timeout"
    assert reply.messages[-1][0] == pytest.approx(1010)
    assert backend.closed == 1


def test_the_deadline_holds_for_a_stream_that_runs() -> None:
    steps = [step for i in range(100) for step in (Pause(1), TextDelta(0, "x"))]

    reply = timed([Started(0.0, 5), *steps], request_timeout_s=20)

    assert json.loads(reply.frames[-2])["error"]["code"] == "timeout"
    assert reply.messages[-1][0] == pytest.approx(1020)


async def test_the_clients_leaving_ends_the_stream_and_frees_the_slot() -> None:
    backend = ScriptedBackend(script=[Started(0.0, 5), TextDelta(0, "x"), Hang()])
    app = make_app(backend)
    connection = Connection(
        app, "POST", "/v1/chat/completions", body=json.dumps({**HELLO, "stream": True}).encode()
    )
    running = asyncio.create_task(connection.run())
    await backend.reached.wait()

    connection.leave()
    await asyncio.wait_for(running, 1)

    assert backend.closed == 1
    assert app.state.gateway.admission.running == 0
    assert b"[DONE]" not in connection.reply.body


async def test_the_slot_is_free_when_the_end_is_read() -> None:
    app = make_app(max_concurrent_completions=1)
    seen: list[int] = []
    connection = Connection(
        app, "POST", "/v1/chat/completions", body=json.dumps({**HELLO, "stream": True}).encode()
    )
    send = connection._send

    async def watch(message: Any) -> None:
        if b"[DONE]" in message.get("body", b""):
            seen.append(app.state.gateway.admission.running)
        await send(message)

    connection._send = watch  # type: ignore[method-assign]
    await connection.run()

    assert seen == [0]
