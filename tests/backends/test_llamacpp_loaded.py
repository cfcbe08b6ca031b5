"""A loaded model around its engine: where prompts are read, closing, and an engine that is over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.errors import BackendFailed, ContextLengthExceeded
from backends.llamacpp import job
from backends.llamacpp import loader as loading
from backends.llamacpp.loaded import LlamaCppModel
from backends.types import ChatPrompt, ChoiceFinished, Prompt, TextPrompt, TokenPrompt
from models.card import ModelCard
from tests.backends.contract import events_of, request, streaming
from tests.backends.shipped_model import MODEL, a_loader, prose


@asynccontextmanager
async def a_model(**options: Any) -> AsyncIterator[LlamaCppModel]:
    """The model with its engine, without a pool."""
    loader = a_loader(**{"n_ctx": 512, **options})
    model = await loader.load(loader.resolve(MODEL), lambda _: None)
    assert isinstance(model, LlamaCppModel)
    try:
        yield model
    finally:
        await model.aclose()


pytestmark = [pytest.mark.engine, pytest.mark.timeout(60)]

LONG = "word " * 2000
A_CALL = {"type": "function", "function": {"name": "f", "arguments": f'{{"text": "{LONG}"}}'}}
LARGE: list[Prompt | list[Prompt]] = [
    TextPrompt(text=LONG),
    [TextPrompt(text="word " * 100) for _ in range(20)],
    ChatPrompt(messages=[{"role": "user", "content": LONG}]),
    ChatPrompt(
        messages=[
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [A_CALL]},
        ]
    ),
    ChatPrompt(messages=[{"role": "user", "content": "?"}], template_kwargs={"note": LONG}),
]


@pytest.mark.parametrize("prompt", LARGE, ids=["text", "many", "chat", "tool-call", "template-kwargs"])
async def test_a_large_request_is_not_read_on_the_event_loop(prompt: Any, monkeypatch: pytest.MonkeyPatch):
    async with a_model() as model:
        read, places = model._tokenize, set()

        def noted(one: Prompt) -> list[int]:
            places.add(threading.current_thread())
            return read(one)

        monkeypatch.setattr(model, "_tokenize", noted)
        with contextlib.suppress(ContextLengthExceeded):
            await events_of(model, request(MODEL, prompt, max_tokens=1))  # type: ignore[arg-type]

        assert places
        assert threading.main_thread() not in places


async def test_the_weights_stay_until_the_last_prompt_is_read(monkeypatch: pytest.MonkeyPatch):
    async with a_model() as model:
        begun, may_go_on = threading.Event(), threading.Event()
        had_weights: list[bool] = []

        def slow(_: Prompt) -> list[int]:
            begun.set()
            may_go_on.wait(30)
            had_weights.append(bool(model._model.handle))
            return [1, 2, 3]

        monkeypatch.setattr(model, "_tokenize", slow)
        reading = asyncio.ensure_future(events_of(model, request(MODEL, TextPrompt(text=LONG))))  # type: ignore[arg-type]
        await asyncio.to_thread(begun.wait, 30)
        reading.cancel()
        closing = asyncio.ensure_future(model.aclose())
        await asyncio.wait({reading, closing}, timeout=0.2)
        may_go_on.set()
        await closing

        assert reading.cancelled()
        assert had_weights == [True]
        assert not model._model.handle


async def test_a_request_that_was_read_while_the_model_closed_fails(monkeypatch: pytest.MonkeyPatch):
    async with a_model() as model:
        begun, may_go_on = threading.Event(), threading.Event()

        def slow(_: Prompt) -> list[int]:
            begun.set()
            may_go_on.wait(30)
            return [1, 2, 3]

        monkeypatch.setattr(model, "_tokenize", slow)
        reading = asyncio.ensure_future(events_of(model, request(MODEL, TextPrompt(text=LONG))))  # type: ignore[arg-type]
        await asyncio.to_thread(begun.wait, 30)
        closing = asyncio.ensure_future(model.aclose())
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(BackendFailed):
            await reading
        await closing


async def test_a_request_after_the_end_of_the_engine_is_answered(monkeypatch: pytest.MonkeyPatch):
    async with a_model() as model:

        def broken() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(model._engine._scheduler, "admit", broken)
        for _ in range(2):
            async with asyncio.timeout(10):
                with pytest.raises(BackendFailed, match="internal error"):
                    await events_of(model, request(MODEL, prose(5)))  # type: ignore[arg-type]
            await asyncio.to_thread(model._engine._thread.join, 10)


async def test_a_choice_gets_its_sampler_when_it_starts(monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []

    class Counted(job.Sampler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(1)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(job, "Sampler", Counted)
    async with a_model(num_slots=4) as model:
        wanted = request(
            MODEL, [prose(4, seed=i) for i in range(12)], max_tokens=40, ignore_eos=True, stream=True
        )
        async with streaming(model, wanted):  # type: ignore[arg-type]
            early = len(made)
        events = await events_of(model, request(MODEL, [prose(4, seed=i) for i in range(12)]))  # type: ignore[arg-type]

    assert early == 4
    assert len({event.index for event in events if isinstance(event, ChoiceFinished)}) == 12


async def test_many_prompts_with_one_beginning_are_not_compared_in_every_step(
    monkeypatch: pytest.MonkeyPatch,
):
    async with a_model(num_slots=4, n_batch=32) as model:
        slots = model._engine._scheduler.slots
        compare, num_compared = slots.longest_prefix, 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_compared
            num_compared += 1
            return compare(*args, **kwargs)

        monkeypatch.setattr(slots, "longest_prefix", counted)
        shared = prose(400).token_ids
        prompts = [TokenPrompt(token_ids=[*shared, 300 + i, 400, 500]) for i in range(40)]
        await events_of(model, request(MODEL, prompts, max_tokens=1))  # type: ignore[arg-type]

    assert num_compared < 40 * 5


async def test_a_load_that_nobody_waits_for_any_more_stops_fetching(monkeypatch: pytest.MonkeyPatch):
    begun, ended = threading.Event(), threading.Event()

    def endless(_card: ModelCard, _kind: str, *, on_progress: Any) -> Path:
        try:
            while True:
                on_progress(1, 2)
                begun.set()
                ended.wait(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(loading, "materialise", endless)
    loader = a_loader()
    load = asyncio.ensure_future(loader.load(loader.resolve(MODEL), lambda _: None))
    await asyncio.to_thread(begun.wait, 30)
    load.cancel()
    await asyncio.wait({load}, timeout=10)

    assert load.cancelled()
    assert ended.is_set()
