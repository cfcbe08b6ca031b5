"""Choosing tokens with the shipped vocabulary and rows of logits made here: no forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

import numpy as np

from backends.errors import BackendFailed, InvalidParameter
from backends.llamacpp.constraint import Constraint, ConstraintCompiler, Source
from backends.llamacpp.model import GgufModel
from backends.llamacpp.sampler import Logits, Sampler, check_token_ids, logprobs_of
from backends.types import SamplingParams
from tests.backends.shipped_model import gguf

pytestmark = pytest.mark.engine

PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def model() -> Iterator[GgufModel]:
    with closing(GgufModel(gguf())) as model:
        yield model


def row(model: GgufModel, likely: dict[int, float] | None = None, *, seed: int = 0) -> Logits:
    """Noise between -1 and 1, and the given logits."""
    logits = np.random.default_rng(seed).uniform(-1, 1, model.num_vocab_tokens).astype(np.float32)
    for token, logit in (likely or {}).items():
        logits[token] = logit
    return logits


def choices(
    model: GgufModel,
    rows: list[Logits],
    *,
    seed: int = 5,
    prompt: list[int] | None = None,
    constraint: Constraint | None = None,
    **params: Any,
) -> list[int]:
    matcher = constraint.matcher() if constraint is not None else None
    with closing(
        Sampler(SamplingParams(**params), model, seed=seed, prompt=prompt or PROMPT, matcher=matcher)
    ) as sampler:
        chosen = []
        for i, untouched in enumerate(rows):
            logits = untouched.copy()
            sampler.prepare(logits, i)
            chosen.append(sampler.choose(logits))
        return chosen


def text(model: GgufModel, tokens: list[int]) -> bytes:
    return b"".join(map(model.piece, tokens))


@pytest.mark.parametrize(
    "greedy",
    [
        {"temperature": 0.0},
        {"temperature": 1e-40},
        {"temperature": 1e-9},
        {"temperature": 1.5, "top_k": 1},
        {"temperature": 1.5, "top_p": 0.0},
        {"temperature": 1.5, "min_p": 1.0},
    ],
)
def test_the_best_token_is_taken_when_there_is_no_choice(model: GgufModel, greedy: dict[str, float]):
    assert choices(model, [row(model, {77: 9.0}), row(model, {88: 1.5})], **greedy) == [77, 88]


def test_a_bias_of_100_forces_a_token(model: GgufModel):
    rows = [row(model, {77: 30.0})] * 3

    assert choices(model, rows, temperature=1.0, logit_bias={5000: 100.0}) == [5000] * 3


def test_a_bias_of_minus_100_forbids_a_token(model: GgufModel):
    rows = [row(model, {77: 30.0, 78: 25.0})] * 3

    assert choices(model, rows, temperature=0.0, logit_bias={77: -100.0}) == [78] * 3


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_count_generated_tokens_and_not_the_prompt(model: GgufModel, penalty: str):
    rows = [row(model, {77: 9.0, 78: 8.0})] * 2

    assert choices(model, rows, temperature=0.0) == [77, 77]
    assert choices(model, rows, temperature=0.0, prompt=[77, 77, 77], **{penalty: 1.5}) == [77, 78]


def test_a_frequency_penalty_grows_with_every_repetition(model: GgufModel):
    rows = [row(model, {77: 9.0, 78: 6.5})] * 5

    assert choices(model, rows, temperature=0.0, frequency_penalty=1.0) == [77, 77, 77, 78, 77]
    assert choices(model, rows, temperature=0.0, presence_penalty=1.0) == [77] * 5


def test_a_negative_penalty_favours_what_was_said(model: GgufModel):
    rows = [row(model, {77: 9.0}), row(model, {77: 8.0, 78: 9.0})]

    assert choices(model, rows, temperature=0.0, presence_penalty=-2.0) == [77, 77]


def test_a_repetition_penalty_counts_the_prompt(model: GgufModel):
    rows = [row(model, {77: 9.0, 78: 8.0})]

    assert choices(model, rows, temperature=0.0, repetition_penalty=1.5, prompt=[77]) == [78]
    assert choices(model, rows, temperature=0.0, repetition_penalty=1.5, prompt=[5]) == [77]


@pytest.mark.parametrize("seed", [0, 5, -1, 2**32 - 1, 2**32, 2**63 - 1, -(2**63)])
def test_one_seed_gives_the_same_tokens(model: GgufModel, seed: int):
    rows = [row(model, seed=i) for i in range(6)]

    first = choices(model, rows, temperature=1.0, seed=seed)
    assert choices(model, rows, temperature=1.0, seed=seed) == first


def test_different_seeds_give_different_tokens(model: GgufModel):
    rows = [row(model, seed=i) for i in range(6)]
    seeds = [5, 6, 5 + 2**32, 6 + 2**33, -5, 2**63 - 1]

    assert len({tuple(choices(model, rows, temperature=1.0, seed=seed)) for seed in seeds}) == len(seeds)


def test_top_k_keeps_the_best(model: GgufModel):
    rows = [row(model, {1000 + i: 5.0 + i / 100 for i in range(9)}, seed=i) for i in range(30)]

    assert set(choices(model, rows, temperature=2.0, top_k=4)) <= {1005, 1006, 1007, 1008}


def test_top_p_keeps_the_smallest_sufficient_set(model: GgufModel):
    logits = {100: math.log(0.5), 101: math.log(0.3), 102: math.log(0.2)}
    rows = [np.full(model.num_vocab_tokens, -50, np.float32) for _ in range(60)]
    for logits_row in rows:
        for token, logit in logits.items():
            logits_row[token] = logit

    assert set(choices(model, rows, temperature=1.0, top_p=0.7)) == {100, 101}
    assert set(choices(model, rows, temperature=1.0, top_p=1.0)) == {100, 101, 102}


def test_the_temperature_acts_before_the_cuts(model: GgufModel):
    # At temperature 2 the best token has 0.41 of the mass instead of 0.67, so that a top_p of 0.6 keeps more of it.
    rows = [np.full(model.num_vocab_tokens, -80, np.float32) for _ in range(60)]
    for logits in rows:
        logits[100], logits[101], logits[102] = math.log(0.67), math.log(0.22), math.log(0.11)

    assert set(choices(model, rows, temperature=1.0, top_p=0.6)) == {100}
    assert {100, 101} <= set(choices(model, rows, temperature=2.0, top_p=0.6))


def test_min_p_is_relative_to_the_best(model: GgufModel):
    rows = [row(model, {100: 9.0, 101: 8.9, 102: 6.0}, seed=i) for i in range(30)]

    assert set(choices(model, rows, temperature=2.0, min_p=0.5)) == {100, 101}


def test_typical_p_may_leave_the_best_token_out(model: GgufModel):
    rows = [np.full(model.num_vocab_tokens, -np.inf, np.float32) for _ in range(40)]
    for logits in rows:
        logits[100] = math.log(0.3)
        logits[101:108] = math.log(0.1)

    assert 100 not in choices(model, rows, temperature=1.0, typical_p=0.3)


def test_a_turn_does_not_end_before_its_time(model: GgufModel):
    end = min(model.end_of_generation)
    rows = [row(model, {end: 30.0, 99: 20.0, 77: 10.0})] * 4

    assert choices(model, rows, temperature=0.0, min_tokens=2) == [99, 99, end, end]
    assert choices(model, rows, temperature=0.0, ignore_eos=True) == [99] * 4


def test_stop_tokens_wait_for_min_tokens_and_not_for_ignore_eos(model: GgufModel):
    rows = [row(model, {99: 30.0, 77: 20.0})] * 3

    assert choices(model, rows, temperature=0.0, min_tokens=2, stop_token_ids=(99,)) == [77, 77, 99]
    assert choices(model, rows, temperature=0.0, ignore_eos=True, stop_token_ids=(99,)) == [99] * 3


@pytest.fixture(scope="module")
def compiler(model: GgufModel) -> Iterator[ConstraintCompiler]:
    with closing(ConstraintCompiler(model)) as compiler:
        yield compiler


def lark(compiler: ConstraintCompiler, text: str) -> Constraint:
    return compiler.compile(Source(kind="lark", text=f"start: {text}", param="structured_outputs.choice"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_is_kept_whatever_the_model_prefers(
    model: GgufModel, compiler: ConstraintCompiler, temperature: float
):
    rows = [row(model, {77: 30.0}, seed=i) for i in range(8)]
    chosen = choices(model, rows, temperature=temperature, constraint=lark(compiler, '"yes" | "no"'))
    ended = next(i for i, token in enumerate(chosen) if token in model.end_of_generation)

    assert text(model, chosen[:ended]) in (b"yes", b"no")


def test_a_constraint_lets_a_turn_end_only_when_it_is_met(model: GgufModel, compiler: ConstraintCompiler):
    end = min(model.end_of_generation)
    rows = [row(model, {end: 30.0})] * 8
    chosen = choices(model, rows, temperature=0.0, constraint=lark(compiler, "/[0-9]{3}/"))

    assert len(text(model, chosen[: chosen.index(end)])) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("never_ends", [{"ignore_eos": True}, {"min_tokens": 50}])
def test_a_constraint_that_is_met_ends_the_turn_even_if_it_must_not_end(
    model: GgufModel, compiler: ConstraintCompiler, temperature: float, never_ends: dict[str, Any]
):
    rows = [row(model, seed=i) for i in range(3)]
    chosen = choices(
        model,
        rows,
        temperature=temperature,
        constraint=lark(compiler, '"a"'),
        typical_p=0.5,
        **never_ends,
    )

    assert text(model, chosen[:1]) == b"a"
    assert chosen[1] in model.end_of_generation


def test_a_constraint_that_no_allowed_token_meets_is_an_error(model: GgufModel, compiler: ConstraintCompiler):
    only = model.tokenize("a", add_special=False, parse_special=False)
    forbidden = {"stop_token_ids": tuple(only), "min_tokens": 5}

    with pytest.raises(BackendFailed):
        choices(model, [row(model)], temperature=0.0, constraint=lark(compiler, '"a"'), **forbidden)


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
@pytest.mark.parametrize("outside", [-1, 49_152, 10**12])
def test_token_ids_outside_the_vocabulary_are_named(model: GgufModel, name: str, outside: int):
    value: Any = {outside: 1.0} if name == "logit_bias" else (outside,)
    with pytest.raises(InvalidParameter, match=f"{name}: token id {outside} is outside") as refused:
        check_token_ids(SamplingParams(**{name: value}), model.num_vocab_tokens)

    assert refused.value.param == name


def test_token_ids_inside_the_vocabulary_pass(model: GgufModel):
    last = model.num_vocab_tokens - 1

    check_token_ids(SamplingParams(logit_bias={0: 1.0, last: 1.0}, stop_token_ids=(0, last)), last + 1)


def test_logprobs_are_those_of_the_whole_distribution(model: GgufModel):
    logits = row(model, {77: 3.0})
    told = logprobs_of(logits, 77, 20, model)
    everything = np.exp(logits.astype(np.float64))

    assert told.chosen.logprob == pytest.approx(math.log(everything[77] / everything.sum()), abs=1e-5)
    assert sum(math.exp(entry.logprob) for entry in told.top) < 1


def test_the_alternatives_fall_and_begin_with_the_best(model: GgufModel):
    told = logprobs_of(row(model, {77: 9.0, 78: 8.0, 79: 7.0}), 500, 3, model)
    values = [entry.logprob for entry in told.top]

    assert [entry.token for entry in told.top] == [model.printable_piece(i) for i in (77, 78, 79)]
    assert values == sorted(values, reverse=True)
    assert told.chosen.logprob < values[-1]


def test_a_certain_token_has_a_logprob_of_zero_and_never_more(model: GgufModel):
    told = logprobs_of(row(model, {77: 1000.0}), 77, 2, model)

    assert told.chosen.logprob == told.top[0].logprob == 0


def test_a_control_token_shows_its_text_in_logprobs(model: GgufModel):
    end = model.tokenize("<|im_end|>", add_special=False, parse_special=True)[0]

    assert model.piece(end) == b""
    assert logprobs_of(row(model), end, 0, model).chosen.token == b"<|im_end|>"


def test_a_sampler_may_be_closed_twice(model: GgufModel):
    sampler = Sampler(SamplingParams(temperature=1.0), model, seed=1, prompt=PROMPT)
    sampler.close()
    sampler.close()
