"""What was computed once is not computed again, and the answer says how much that was."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.types import TokenPrompt
from tests.backends.contract import events_of, finished_of, request, text_of
from tests.backends.shipped_model import MODEL, a_model, prose

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]


async def test_a_prompt_that_is_cached_computes_its_last_two_tokens_only():
    wanted = request(MODEL, prose(40), max_tokens=2)
    async with a_model() as model:
        first = finished_of(await events_of(model, wanted)).usage.cached_tokens
        again = finished_of(await events_of(model, wanted)).usage.cached_tokens

    assert (first, again) == (0, 38)


async def test_the_next_turn_reuses_the_prompt_of_the_last_one():
    ids = prose(40).token_ids
    async with a_model() as model:
        await events_of(model, request(MODEL, TokenPrompt(token_ids=ids), max_tokens=4))
        longer = TokenPrompt(token_ids=[*ids, *prose(20, seed=1).token_ids])
        events = await events_of(model, request(MODEL, longer, max_tokens=2))

    assert finished_of(events).usage.cached_tokens == 40


async def test_a_request_without_a_seed_reuses_the_answer_too():
    wanted = request(MODEL, prose(40), temperature=1.0, max_tokens=8, ignore_eos=True, logprobs=0)
    async with a_model() as model:
        await events_of(model, wanted)
        ids = list(max((slot.tokens for slot in model._engine._scheduler.slots.slots), key=len))
        longer = TokenPrompt(token_ids=[*ids, *prose(5, seed=1).token_ids])
        events = await events_of(model, request(MODEL, longer, temperature=1.0, max_tokens=2))

    assert finished_of(events).usage.cached_tokens == len(ids) == 47


async def test_a_prompt_in_use_is_reused_while_it_runs():
    ids = prose(40).token_ids
    endless = request(MODEL, TokenPrompt(token_ids=ids), max_tokens=100, ignore_eos=True, stream=True)
    async with a_model() as model:
        running = model.generate(endless)
        while not any(getattr(event, "text", "") for event in await anext(running)):
            pass
        events = await events_of(model, request(MODEL, TokenPrompt(token_ids=[*ids, 500, 501]), max_tokens=2))
        await running.aclose()

    assert finished_of(events).usage.cached_tokens == 40


async def test_sixteen_requests_with_one_beginning_compute_it_once():
    shared = prose(100).token_ids
    async with a_model(num_slots=16, n_ctx=128) as model:
        wanted = [
            request(MODEL, TokenPrompt(token_ids=[*shared, *prose(8, seed=i + 1).token_ids]), max_tokens=2)
            for i in range(16)
        ]
        answers = await asyncio.gather(*[events_of(model, one, patience_s=200) for one in wanted])

    assert sum(finished_of(events).usage.cached_tokens for events in answers) >= 15 * (len(shared) - 2)


async def test_more_requests_than_slots_with_one_beginning_compute_it_once():
    shared = prose(60).token_ids
    async with a_model(num_slots=2, n_ctx=128) as model:
        wanted = [
            request(MODEL, TokenPrompt(token_ids=[*shared, *prose(8, seed=i + 1).token_ids]), max_tokens=2)
            for i in range(6)
        ]
        answers = await asyncio.gather(*[events_of(model, one, patience_s=200) for one in wanted])

    assert sum(finished_of(events).usage.cached_tokens for events in answers) >= 5 * (len(shared) - 2)


async def test_choices_of_one_request_share_its_prompt_and_count_it_once():
    wanted = request(MODEL, prose(60), temperature=1.0, n=4, max_tokens=2, ignore_eos=True)
    async with a_model() as model:
        usage = finished_of(await events_of(model, wanted)).usage
        again = finished_of(await events_of(model, wanted)).usage

    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (60, 8, 0)
    assert again.cached_tokens == 58


async def test_a_prompt_read_beside_a_running_answer_can_be_reused_by_a_seeded_request():
    ids = prose(60).token_ids
    wanted = request(MODEL, TokenPrompt(token_ids=ids), seed=3, temperature=1.0, max_tokens=2)
    async with a_model() as model:
        beside = request(MODEL, prose(10, seed=9), max_tokens=40, ignore_eos=True, stream=True)
        running = model.generate(beside)
        while not any(getattr(event, "text", "") for event in await anext(running)):
            pass
        first = text_of(await events_of(model, wanted))
        await running.aclose()
        again = await events_of(model, wanted)

    assert first
    assert finished_of(again).usage.cached_tokens == 58


async def test_an_aborted_prompt_leaves_what_it_computed():
    ids = prose(120).token_ids
    async with a_model(n_batch=32) as model:
        generator = model.generate(request(MODEL, TokenPrompt(token_ids=ids), max_tokens=4, stream=True))
        await anext(generator)
        await generator.aclose()
        events = await events_of(model, request(MODEL, TokenPrompt(token_ids=ids), max_tokens=2))

    assert finished_of(events).usage.cached_tokens >= 30
