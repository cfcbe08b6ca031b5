"""Requests that miss every other deadline end all the same, with the contract's body."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from backends.types import LoadProgress
from tests.openai_compat.scripted_backend import Pause, ScriptedBackend
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import Reply, call, make_app


async def stalled(app: Any) -> Reply:
    """A client that sends half a body and nothing more, but stays."""
    reply = Reply()
    parts: list[Message] = [{"type": "http.request", "body": b'{"model": ', "more_body": True}]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    async def send(message: Message) -> None:
        reply.messages.append((asyncio.get_running_loop().time(), dict(message)))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"x-request-id", b"stalled-1")],
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    return reply


def test_a_request_whose_body_never_comes_is_ended() -> None:
    reply = run_virtual(stalled(make_app(backstop_s=600)))

    assert (reply.status, reply.error["code"]) == (504, "timeout")
    assert reply.messages[0][0] == pytest.approx(1600)
    assert reply.headers["x-request-id"] == "stalled-1"


def test_a_load_may_tell_of_its_progress_for_longer() -> None:
    steps = [LoadProgress("loading", 1, 9), Pause(5000), LoadProgress("ready", 9, 9)]
    body = json.dumps({"model": "tiny", "backend": "fake", "stream": True}).encode()

    reply = run_virtual(
        call(
            make_app(ScriptedBackend(load_steps=steps), backstop_s=600), "POST", "/v1/models/load", body=body
        )
    )

    assert json.loads(reply.frames[-2])["success"] is True


def test_requests_leave_no_timers() -> None:
    async def scenario() -> int:
        app = make_app(backstop_s=600)
        for _ in range(200):
            await call(app, "GET", "/v1/backends")
        loop: Any = asyncio.get_running_loop()
        return sum(not handle.cancelled() for handle in loop._scheduled)

    assert run_virtual(scenario()) == 1
