"""What one step of the engine computes, and in which order: prompts, then one token of everybody."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.llamacpp.context import Batch, Context
from backends.types import TextDelta, TextPrompt
from tests.backends.contract import events_of, request, until
from tests.backends.shipped_model import MODEL, a_model, prose

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

Pass = list[int]
"""How many tokens each sequence has in one batch, in the batch's order."""


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """Every batch that is computed from now on."""
    seen: list[Pass] = []
    current: Pass = []
    clear, add, decode = Batch.clear, Batch.add, Context.decode

    def spied_clear(self: Batch) -> None:
        current.clear()
        clear(self)

    def spied_add(self: Batch, tokens: list[int], **rest: int) -> None:
        current.append(len(tokens))
        add(self, tokens, **rest)  # type: ignore[arg-type]

    def spied_decode(self: Context) -> object:
        seen.append(list(current))
        return decode(self)

    monkeypatch.setattr(Batch, "clear", spied_clear)
    monkeypatch.setattr(Batch, "add", spied_add)
    monkeypatch.setattr(Context, "decode", spied_decode)
    return seen


async def until_decoding(batches: list[Pass]) -> None:
    async def decoding() -> bool:
        return [1] in batches

    await until(decoding)


async def test_a_prompt_meets_decoding_sequences_in_a_batch_before_theirs_and_joins_them(
    batches: list[Pass],
):
    async with a_model() as model:
        first = asyncio.create_task(
            events_of(model, request(MODEL, prose(6, seed=1), max_tokens=60, ignore_eos=True))
        )
        await until_decoding(batches)
        await events_of(model, request(MODEL, prose(20, seed=2), max_tokens=4, ignore_eos=True))
        await first

    at = batches.index([20])
    assert batches[at - 1] == [1]
    assert batches[at + 1] == [1, 1]


async def test_the_first_token_of_a_prompt_is_told_before_the_others_are_computed(batches: list[Pass]):
    async with a_model() as model:
        first = asyncio.create_task(
            events_of(model, request(MODEL, prose(6, seed=1), max_tokens=60, ignore_eos=True))
        )
        await until_decoding(batches)
        told: list[Pass] = []
        deliver = model._engine._deliver

        def spied(deliveries: list) -> None:  # type: ignore[type-arg]
            if any(job.prompts[0] == prompt.token_ids for job, _, _ in deliveries) and not told:
                told.append(batches[-1])
            deliver(deliveries)

        prompt = prose(20, seed=2)
        model._engine._deliver = spied
        events = await events_of(model, request(MODEL, prompt, max_tokens=1, stream=True, ignore_eos=True))
        await first

    assert [event for event in events if isinstance(event, TextDelta)]
    assert told == [[20]]


async def test_what_a_prompt_leaves_of_a_chunk_is_not_spent_on_one_that_gains_no_step_by_it(
    batches: list[Pass],
):
    async with a_model(prefill_chunk_tokens=24) as model:
        first = asyncio.create_task(
            events_of(model, request(MODEL, prose(6, seed=1), max_tokens=80, ignore_eos=True))
        )
        await until_decoding(batches)
        await asyncio.gather(
            *[
                events_of(model, request(MODEL, prose(20, seed=seed), max_tokens=2, ignore_eos=True))
                for seed in (2, 3)
            ]
        )
        await first

    pieces = [piece for batch in batches for piece in batch if piece > 1]
    assert pieces == [6, 20, 20]


async def test_what_a_prompt_leaves_of_a_chunk_goes_to_one_that_needs_a_step_less_with_it(
    batches: list[Pass],
):
    async with a_model(prefill_chunk_tokens=24) as model:
        first = asyncio.create_task(
            events_of(model, request(MODEL, prose(6, seed=1), max_tokens=80, ignore_eos=True))
        )
        await until_decoding(batches)
        await asyncio.gather(
            *[
                events_of(model, request(MODEL, prose(length, seed=length), max_tokens=2, ignore_eos=True))
                for length in (14, 30)
            ]
        )
        await first

    steps = [sorted(piece for piece in batch if piece > 1) for batch in batches if max(batch) > 1]
    assert steps == [[6], [10, 14], [20]]


async def test_a_request_of_many_prompts_leaves_the_next_free_slot_to_one_of_one():
    order: list[str] = []
    async with a_model(num_slots=2) as model:
        many = request(MODEL, prose(6), max_tokens=6, ignore_eos=True)
        prompts = tuple(
            TextPrompt(text=f"{word} and so on") for word in ("one", "two", "three", "four", "five")
        )
        wide = type(many)(
            request_id="wide", model=MODEL, prompts=prompts, sampling=many.sampling, stream=True
        )

        async def run(name: str, wanted: object) -> None:
            await events_of(model, wanted)  # type: ignore[arg-type]
            order.append(name)

        first = asyncio.create_task(run("wide", wide))

        async def begun() -> bool:
            return model.running == 1

        await until(begun)
        await run("narrow", request(MODEL, prose(6, seed=9), max_tokens=6, ignore_eos=True))
        await first

    assert order == ["narrow", "wide"]
