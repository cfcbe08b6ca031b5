"""Calls that hang in a thread hold up nobody else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from backends.types import TextPrompt
from tests.backends.litellm_backends import a_backend, environment, needs_litellm

pytestmark = needs_litellm


async def test_threads_that_hang_leave_some_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, "http://127.0.0.1:9")
    end = threading.Event()
    async with a_backend() as backend:
        hanging = [asyncio.create_task(asyncio.to_thread(end.wait, 30)) for _ in range(40)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(20):
                counted = await backend.count_tokens("gpt-4o", TextPrompt(text="one two three"))
        finally:
            end.set()
            await asyncio.gather(*hanging)

    assert counted == 3
