"""A closed loop of streams, and what happened inside its window.

Everything is counted by the moment at which it happens: text that arrives inside the window, first tokens that arrive
inside it, requests that end inside it. So nothing is cut off at the edges that a steady load would not bring in at the
other edge. Streams begin with a warm-up request each, of spread lengths; the window opens when the last of them has
ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from bench.client import Answer, ask
from bench.stats import percentile

Body = dict[str, Any]
MAX_FAILURES = 20


class LoadFailed(Exception):
    """The server answers with errors only; the measurement means nothing."""


@dataclass(slots=True)
class Window:
    """What one loop saw. `opened` and `closed` are `time.perf_counter()`."""

    opened: float = 0.0
    closed: float = 0.0
    answers: list[Answer] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error is not None]


@dataclass(slots=True)
class Sample:
    """What a window says about a server. Times in seconds."""

    seconds: float
    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Between two pieces of text of one stream."""
    e2e: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The part of each stream's text that arrived inside the window."""
    whole_texts: list[str] = field(default_factory=list)
    """Texts of the requests that ended inside it."""
    whole_tokens: list[int] = field(default_factory=list)
    """What the server says about the same requests' tokens, where it does."""
    prompt_tokens: list[int] = field(default_factory=list)
    pieces: int = 0

    def summary(self) -> dict[str, float | None]:
        """The usual numbers, in ms where the name says so; tokens per second are the caller's, who can count."""
        return {
            "requests": len(self.e2e),
            "pieces_per_s": self.pieces / self.seconds,
            "ttft_p50_ms": _ms(percentile(self.ttft, 0.5)),
            "itl_p50_ms": _ms(percentile(self.gaps, 0.5)),
            "itl_p99_ms": _ms(percentile(self.gaps, 0.99)),
            "e2e_p50_ms": _ms(percentile(self.e2e, 0.5)),
            "prompt_tokens_mean": sum(self.prompt_tokens) / len(self.prompt_tokens)
            if self.prompt_tokens
            else None,
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def look_at(window: Window) -> Sample:
    """Cut the window out of its answers."""
    opened, closed = window.opened, window.closed
    sample = Sample(closed - opened)
    for answer in window.answers:
        inside = [(at, text) for at, text in answer.pieces if opened <= at < closed]
        if inside:
            sample.pieces += len(inside)
            sample.texts.append("".join(text for _, text in inside))
        if answer.ttft is not None and opened <= answer.pieces[0][0] < closed:
            sample.ttft.append(answer.ttft)
        sample.gaps += [
            later - earlier
            for (earlier, _), (later, _) in pairwise(answer.pieces)
            if opened <= later < closed
        ]
        if answer.ended is not None and opened <= answer.ended < closed:
            sample.e2e.append(answer.ended - answer.sent)
            sample.whole_texts.append(answer.text)
            sample.whole_tokens += [] if answer.completion_tokens is None else [answer.completion_tokens]
            sample.prompt_tokens += [] if answer.prompt_tokens is None else [answer.prompt_tokens]
    return sample


@asynccontextmanager
async def streams_running(
    session: aiohttp.ClientSession, url: str, *, warmup: Sequence[Body], bodies: Iterator[Body]
) -> AsyncIterator[Window]:
    """Keep `len(warmup)` streams busy for the time of the block, which begins when the warm-up requests have ended;
    afterwards close all connections. The block may set `opened` and `closed` itself.

    Raises: LoadFailed if there are too many failures before the block.
    """
    window = Window()
    warming = len(warmup)
    warm = asyncio.Event()

    async def stream(first: Body) -> None:
        nonlocal warming
        body = first
        while True:
            answer = Answer()
            window.answers.append(answer)
            await ask(session, url, body, answer)
            if body is first:
                warming -= 1
                if not warming:
                    warm.set()
            if answer.error is not None:
                if len(window.errors) >= MAX_FAILURES:
                    warm.set()
                    return
                await asyncio.sleep(0.1)
            body = next(bodies)

    tasks = [asyncio.create_task(stream(first)) for first in warmup]
    try:
        await warm.wait()
        if len(window.errors) >= MAX_FAILURES:
            raise LoadFailed(f"{url}: {window.errors[0]}")
        window.opened = time.perf_counter()
        yield window
        window.closed = window.closed or time.perf_counter()
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def closed_loop(
    session: aiohttp.ClientSession,
    url: str,
    *,
    warmup: Sequence[Body],
    bodies: Iterator[Body],
    seconds: float,
    on_open: Callable[[], None] = lambda: None,
    on_close: Callable[[], None] = lambda: None,
) -> Window:
    """Run the loop for `seconds` of window. `on_open` and `on_close` are called at its edges."""
    async with streams_running(session, url, warmup=warmup, bodies=bodies) as window:
        on_open()
        await asyncio.sleep(seconds)
        window.closed = time.perf_counter()
        on_close()
    return window
