"""A KV cache that is too small for what runs: sequences give way, the cache grows, and nobody's answer suffers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.errors import InsufficientMemory
from backends.llamacpp.context import Context
from backends.llamacpp.loaded import LlamaCppModel
from backends.types import Event
from tests.backends.contract import endings_of, events_of, finished_of, request, text_of
from tests.backends.shipped_model import MODEL, a_model, prose

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]


async def all_of(
    model: LlamaCppModel, count: int, *, prompt_tokens: int, max_tokens: int
) -> list[list[Event]]:
    wanted = [
        request(MODEL, prose(prompt_tokens, seed=i), ignore_eos=True, max_tokens=max_tokens, stream=True)
        for i in range(count)
    ]
    return list(await asyncio.gather(*[events_of(model, one, patience_s=200) for one in wanted]))


def lengths(answers: Sequence[list[Event]]) -> list[tuple[int, str]]:
    return [
        (finished_of(events).usage.completion_tokens, endings_of(events)[0].finish_reason)
        for events in answers
    ]


async def test_sixteen_answers_that_do_not_fit_together_are_all_complete():
    async with a_model(num_slots=16, n_ctx=128, kv_unified=True) as model:
        answers = await all_of(model, 16, prompt_tokens=20, max_tokens=24)

    assert lengths(answers) == [(24, "length")] * 16


async def test_a_preempted_answer_begins_once_and_loses_no_text():
    async with a_model(num_slots=4, n_ctx=64, kv_unified=True) as model:
        answers = await all_of(model, 4, prompt_tokens=18, max_tokens=20)

    for events in answers:
        assert sum(type(event).__name__ == "Started" for event in events) == 1
        assert sum(getattr(event, "num_tokens", 0) for event in events) <= 20
        assert finished_of(events).usage.prompt_tokens == 18
        assert text_of(events)


async def test_choices_that_wait_for_each_other_do_not_wait_forever():
    # Both requests hold their last tokens back for choices that find no cells.
    async with a_model(num_slots=4, n_ctx=64, kv_unified=True) as model:
        wanted = [
            request(MODEL, prose(n, seed=n), temperature=1.0, n=2, max_tokens=3, ignore_eos=True)
            for n in (33, 32)
        ]
        answers = await asyncio.gather(*[events_of(model, one, patience_s=60) for one in wanted])

    assert [finished_of(events).usage.completion_tokens for events in answers] == [6, 6]


async def test_a_prompt_that_fills_the_shared_cache_runs_beside_others():
    async with a_model(num_slots=3, n_ctx=96, kv_unified=True) as model:
        long = request(MODEL, prose(94), ignore_eos=True, max_tokens=2)
        others = all_of(model, 2, prompt_tokens=10, max_tokens=12)
        events, answers = await asyncio.gather(events_of(model, long, patience_s=100), others)

    assert finished_of(events).usage.completion_tokens == 2
    assert lengths(answers) == [(12, "length")] * 2


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "n": 3}])
async def test_a_cache_that_grows_changes_no_text(fields: dict[str, Any]):
    wanted = request(MODEL, prose(12), max_tokens=24, ignore_eos=True, **fields)
    choices = range(wanted.n)
    async with a_model(n_ctx=256) as model:
        events = await events_of(model, wanted)
        expected = [text_of(events, i) for i in choices]
    async with a_model(n_ctx=256, initial_tokens=16) as model:
        events = await events_of(model, wanted)
        answers = [text_of(events, i) for i in choices]
        grown = model._engine._context.config.tokens_per_sequence

    assert answers == expected
    assert grown == 64


async def test_a_cache_that_grows_keeps_what_idle_slots_hold():
    async with a_model(n_ctx=256, initial_tokens=64) as model:
        await events_of(model, request(MODEL, prose(50), max_tokens=2))
        await events_of(model, request(MODEL, prose(100, seed=1), max_tokens=2))
        again = await events_of(model, request(MODEL, prose(50), max_tokens=2))

    assert finished_of(again).usage.cached_tokens == 48


async def test_a_cache_never_grows_beyond_its_full_size():
    async with a_model(n_ctx=96, initial_tokens=64) as model:
        events = await events_of(model, request(MODEL, prose(80), ignore_eos=True, max_tokens=None))
        grown = model._engine._context.config.tokens_per_sequence

    assert finished_of(events).usage.completion_tokens == 16
    assert grown == 96


async def test_without_memory_to_grow_all_share_one_cache_and_everything_is_complete():
    async with a_model(num_slots=4, n_ctx=128, initial_tokens=32, spare_bytes=lambda: 0) as model:
        answers = await all_of(model, 6, prompt_tokens=24, max_tokens=24)
        config = model._engine._context.config

    assert lengths(answers) == [(24, "length")] * 6
    assert (config.kv_unified, config.tokens_per_sequence) == (True, 128)


async def test_an_answer_goes_on_where_it_was_when_the_cache_is_replaced():
    wanted = request(MODEL, prose(20), max_tokens=30, ignore_eos=True, stream=True)
    async with a_model(n_ctx=128) as model:
        expected = text_of(await events_of(model, wanted))
    async with a_model(n_ctx=128, initial_tokens=32, spare_bytes=lambda: 0) as model:
        answer = text_of(await events_of(model, wanted))

    # The two caches round differently, so only what came before the change must agree.
    assert answer[:20] == expected[:20]
    assert len(answer) > 20


async def test_an_allocation_that_fails_is_a_shared_cache_and_no_failure(monkeypatch: pytest.MonkeyPatch):
    make = Context.__init__

    def refuse_large_ones(self: Context, model: object, config: object) -> None:
        if getattr(config, "num_cells", 0) > 4 * 32 and not getattr(config, "kv_unified", False):
            raise InsufficientMemory("no room")
        make(self, model, config)  # type: ignore[arg-type]

    monkeypatch.setattr(Context, "__init__", refuse_large_ones)
    async with a_model(num_slots=4, n_ctx=128, initial_tokens=32) as model:
        answers = await all_of(model, 2, prompt_tokens=24, max_tokens=16)

    assert lengths(answers) == [(16, "length")] * 2
