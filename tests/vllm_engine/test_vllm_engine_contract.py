"""vLLM itself meets the contract, behind the runner's wire. One engine serves all tests; each has a pool of its own,
for which loading is only to connect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.base import Backend
from backends.errors import InvalidGrammar, InvalidParameter
from backends.pool import PooledBackend
from backends.registry import FEATURES
from backends.types import GenerationRequest, SamplingParams
from tests.backends.contract import (
    PROMPT,
    BackendContract,
    endings_of,
    events_of,
    finished_of,
    request,
    text_of,
)
from tests.backends.serving import served
from tests.vllm_engine.shared_engine import MODEL, Served, SharedLoader


@pytest.fixture
def model() -> str:
    return MODEL


class TestVLLMBehindTheRunnerWire(BackendContract):
    @pytest.fixture
    async def backend(self, shared: Served) -> AsyncIterator[Backend]:
        pool = PooledBackend(SharedLoader(shared))
        pool.features = FEATURES["vllm"]
        async with served(pool) as client:
            yield client


async def test_more_stop_strings_than_vllm_takes_are_cut_all_the_same(backend: Backend):
    text = text_of(await events_of(backend, request(MODEL, max_tokens=16)))
    stops = ("%%1", "%%2", "%%3", "%%4", "%%5", text[4:7])
    events = await events_of(backend, request(MODEL, max_tokens=16, stop=stops))

    assert text_of(events) == text[: text.index(text[4:7])]
    assert endings_of(events)[0].finish_reason == "stop"
    assert endings_of(events)[0].stop_reason == text[4:7]


async def test_several_greedy_choices_are_made_although_vllm_refuses_them(backend: Backend):
    events = await events_of(backend, request(MODEL, n=3))

    assert text_of(events, 0) == text_of(events, 1) == text_of(events, 2) != ""


@pytest.mark.parametrize("fields", [{"logit_bias": {10**6: 5.0}}, {"stop_token_ids": (10**6,)}])
async def test_a_token_id_outside_the_vocabulary_harms_nobody(backend: Backend, fields: dict[str, Any]):
    with pytest.raises(InvalidParameter):
        await events_of(backend, request(MODEL, **fields))

    assert text_of(await events_of(backend, request(MODEL)))


def constrained(**fields: Any) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=30)
    return GenerationRequest(request_id="s1", model=MODEL, prompts=(PROMPT,), sampling=sampling, **fields)


async def test_a_choice_is_one_of_those_given(backend: Backend):
    events = await events_of(backend, constrained(structured_outputs={"choice": ["yes", "no"]}))

    assert text_of(events) in ("yes", "no")


async def test_a_schema_that_cannot_be_enforced_is_refused_and_harms_nobody(backend: Backend):
    wanted = constrained(structured_outputs={"regex": "(unclosed"})
    with pytest.raises((InvalidGrammar, InvalidParameter)):
        await events_of(backend, wanted)

    assert finished_of(await events_of(backend, request(MODEL))).usage.completion_tokens == 12
