"""The same request gives the same tokens to the bit, whatever the cache held.

See docs/decisions/same-text-from-a-cached-prefix.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.llamacpp.loaded import LlamaCppModel
from backends.types import ChatPrompt, ChoiceFinished, GenerationRequest, Prompt, TextDelta, TokenPrompt
from tests.backends.contract import events_of, finished_of, request, text_of
from tests.backends.shipped_model import MODEL, a_model, prose

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

N_BATCH = 32
LENGTHS = [1, 2, 3, 31, 32, 33, 34, 65]
"""Around the borders of the batches in which a prompt is computed."""

Answer = tuple[list[str], list[list[float]]]


def asked(prompt: Prompt | Sequence[Prompt], **fields: Any) -> GenerationRequest:
    return request(MODEL, prompt, **{"logprobs": 0, "max_tokens": 4, "ignore_eos": True, **fields})


async def answer(model: LlamaCppModel, wanted: GenerationRequest) -> Answer:
    """Texts, and the logprobs of each choice's tokens: equal texts may hide logits that differ."""
    events = await events_of(model, wanted)
    texts = [text_of(events, i) for i in range(wanted.n)]
    logprobs: list[list[float]] = [[] for _ in texts]
    for event in events:
        if isinstance(event, TextDelta | ChoiceFinished):
            logprobs[event.index] += [entry.chosen.logprob for entry in event.logprobs or ()]
    return texts, logprobs


async def alone(wanted: GenerationRequest) -> Answer:
    """On an engine that has seen nothing else."""
    async with a_model(n_batch=N_BATCH) as model:
        return await answer(model, wanted)


SAMPLED = {"temperature": 1.0, "seed": 11}
WAYS = [{"temperature": 0.0}, SAMPLED, {**SAMPLED, "n": 3}, {"temperature": 0.0, "repetition_penalty": 1.3}]
WAY_NAMES = ["greedy", "seed", "seed-n3", "penalty"]


@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
async def test_a_repeated_request_gives_the_same(way: dict[str, Any]):
    async with a_model(n_batch=N_BATCH) as model:
        for length in LENGTHS:
            wanted = asked(prose(length, seed=length), **way)
            first = await answer(model, wanted)

            assert await answer(model, wanted) == first, length


@pytest.mark.parametrize("length", [33, 65])
@pytest.mark.parametrize("way", WAYS[:3], ids=WAY_NAMES[:3])
async def test_a_prefix_cached_by_others_changes_nothing(length: int, way: dict[str, Any]):
    ids = prose(length).token_ids
    wanted = asked(TokenPrompt(token_ids=ids), **way)
    expected = await alone(wanted)

    for others in (
        [[*ids, *prose(9, seed=1).token_ids]],
        [ids[: length // 2]],
        [[*ids[: length // 2 + 1], *prose(20, seed=2).token_ids]],
        [ids[:-1], ids[:20], [*ids, 300], prose(40, seed=3).token_ids],
    ):
        async with a_model(n_batch=N_BATCH) as model:
            for other in others:
                await answer(model, asked(TokenPrompt(token_ids=other), temperature=1.0, max_tokens=2))

            assert await answer(model, wanted) == expected


@pytest.mark.parametrize("way", WAYS[:3], ids=WAY_NAMES[:3])
async def test_the_cached_answer_of_the_previous_turn_changes_nothing(way: dict[str, Any]):
    messages = [{"role": "user", "content": "Name three rivers."}]
    async with a_model(n_batch=N_BATCH) as model:
        for _ in range(2):
            wanted = asked(ChatPrompt(messages=list(messages)), **{**way, "max_tokens": 10})
            texts, logprobs = await answer(model, wanted)
            if len(messages) > 1:
                assert await alone(wanted) == (texts, logprobs)
            messages += [
                {"role": "assistant", "content": texts[0]},
                {"role": "user", "content": "And where do they end?"},
            ]


async def test_many_rounds_over_several_prompts_give_the_same_every_time():
    shared = prose(40).token_ids
    prompts = [TokenPrompt(token_ids=[*shared, *prose(7 + 9 * i, seed=i).token_ids]) for i in range(4)]
    ways = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}]
    async with a_model(n_batch=N_BATCH, num_slots=2) as model:
        rounds = [
            [await answer(model, asked(prompt, **way)) for prompt in prompts for way in ways]
            for _ in range(3)
        ]

    assert rounds[1:] == [rounds[0]] * 2


async def test_greedy_choices_are_computed_once_and_counted_each():
    wanted = asked(prose(30), temperature=0.0, n=3)
    async with a_model() as model:
        one = await events_of(model, asked(prose(30), temperature=0.0))
        three = await events_of(model, wanted)

    assert [text_of(three, i) for i in range(3)] == [text_of(one)] * 3
    assert finished_of(three).usage.completion_tokens == 3 * finished_of(one).usage.completion_tokens == 12
    assert finished_of(three).usage.prompt_tokens == 30


async def test_the_choices_of_one_request_differ():
    async with a_model() as model:
        texts, _ = await answer(model, asked(prose(30), temperature=1.0, seed=3, n=3))

    assert len(set(texts)) == 3


async def test_requests_without_a_seed_differ():
    async with a_model() as model:
        texts = [(await answer(model, asked(prose(30), temperature=1.0)))[0][0] for _ in range(3)]

    assert len(set(texts)) == 3
