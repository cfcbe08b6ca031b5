"""Requests that miss every other deadline end all the same, with the contract's body."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typing_extensions import override

from backends.types import LoadProgress
from tests.openai_compat.scripted_backend import Pause, ScriptedBackend
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import call, make_app


class HangsOnUnload(ScriptedBackend):
    """Its own deadline, that of a request (300 s), comes after the backstop's in these tests."""

    @override
    async def unload(self, model: str) -> None:
        await asyncio.Event().wait()


def test_a_request_that_no_other_deadline_has_ended_is_ended() -> None:
    body = json.dumps({"model": "tiny", "backend": "fake"}).encode()
    headers = {"x-request-id": "stalled-1"}

    reply = run_virtual(
        call(
            make_app(HangsOnUnload(), backstop_s=200), "POST", "/v1/models/unload", body=body, headers=headers
        )
    )

    assert (reply.status, reply.error["code"]) == (504, "timeout")
    assert reply.messages[0][0] == pytest.approx(1200)
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
