"""Constrained answers of the engine: what comes out, and how they end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.errors import BackendFailed, InvalidGrammar, UnsupportedParameter
from backends.llamacpp.constraint import Matcher
from backends.llamacpp.loaded import LlamaCppModel
from backends.types import TextPrompt
from tests.backends.contract import CHAT, endings_of, events_of, finished_of, logprobs_of, request, text_of
from tests.backends.shipped_model import MODEL, a_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
    },
    "required": ["city", "days"],
}


@pytest.fixture
async def model() -> AsyncIterator[LlamaCppModel]:
    async with a_model() as model:
        yield model


def constrained(prompt: Any = CHAT, max_tokens: int = 60, **fields: Any) -> Any:
    return request(MODEL, prompt, max_tokens=max_tokens, **fields)


async def written(model: LlamaCppModel, **fields: Any) -> tuple[str, str]:
    events = await events_of(model, constrained(**fields))
    return text_of(events), endings_of(events)[0].finish_reason


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "^[A-Z]{3}-[0-9]{4}$"}, r"[A-Z]{3}-[0-9]{4}"),
        ({"choice": ["maybe", "may", 'say "no"\n']}, r'maybe|may|say "no"\n'),
        ({"grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]{2}/'}, r"a[0-9]{2}"),
        ({"grammar": 'root ::= "a" [0-9] [0-9]'}, r"a[0-9]{2}"),
        ({"json": CITY}, r'\{"city": "(Oslo|Rome)", "days": [1-9][0-9]?\}'),
        ({"json": CITY, "disable_any_whitespace": True}, r'\{"city":"(Oslo|Rome)","days":[1-9][0-9]?\}'),
        ({"json": {"const": [1]}, "whitespace_pattern": "_"}, r"_?\[_?1_?\]_?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_the_whole_answer_is_what_was_asked_for(
    model: LlamaCppModel, outputs: dict[str, Any], pattern: str, temperature: float
):
    text, reason = await written(model, structured_outputs=outputs, temperature=temperature, seed=4)

    assert re.fullmatch(pattern, text)
    assert reason == "stop"


async def test_a_choice_that_begins_another_can_be_chosen(model: LlamaCppModel):
    (b,) = model._model.tokenize("b", add_special=False, parse_special=False)
    bias = {b: -100.0}
    text, _ = await written(model, structured_outputs={"choice": ["a", "ab"]}, logit_bias=bias)

    assert text == "a"


async def test_any_object_is_an_object(model: LlamaCppModel):
    text, reason = await written(model, response_format={"type": "json_object"}, max_tokens=200)

    assert text.startswith("{")
    assert reason == "length" or isinstance(json.loads(text), dict)


async def test_penalties_and_a_bias_for_others_change_nothing_about_it(model: LlamaCppModel):
    (x,) = model._model.tokenize("x", add_special=False, parse_special=False)
    fields = {"presence_penalty": 2.0, "repetition_penalty": 1.5, "logit_bias": {x: 100.0}, "typical_p": 0.5}
    text, reason = await written(model, structured_outputs={"json": CITY}, temperature=1.0, **fields)

    assert json.loads(text).keys() == {"city", "days"}
    assert reason == "stop"


async def test_what_max_tokens_cut_is_length_and_not_mended(model: LlamaCppModel):
    whole, _ = await written(model, structured_outputs={"json": CITY})
    text, reason = await written(model, structured_outputs={"json": CITY}, max_tokens=5)

    assert reason == "length"
    assert whole.startswith(text)
    assert text != whole


async def test_a_whole_answer_takes_no_token_for_its_end(model: LlamaCppModel):
    events = await events_of(model, constrained(structured_outputs={"choice": ["a"]}))

    assert finished_of(events).usage.completion_tokens == 1


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 50}], ids=lambda f: next(iter(f)))
async def test_an_end_that_comes_too_early_comes_all_the_same_where_nothing_may_follow(
    model: LlamaCppModel, fields: dict[str, Any]
):
    assert await written(model, structured_outputs={"choice": ["Oslo"]}, **fields) == ("Oslo", "stop")


async def test_ignore_eos_goes_on_where_the_constraint_does(model: LlamaCppModel):
    text, reason = await written(
        model, structured_outputs={"regex": "[a-z ]+"}, ignore_eos=True, max_tokens=30
    )

    assert re.fullmatch("[a-z ]+", text)
    assert reason == "length"


async def test_a_stop_string_cuts_it(model: LlamaCppModel):
    text, reason = await written(model, structured_outputs={"json": CITY}, stop=('", "days',))

    assert re.fullmatch(r'\{"city": "(Oslo|Rome)', text)
    assert reason == "stop"


async def test_each_of_several_choices_is_held_to_it(model: LlamaCppModel):
    events = await events_of(
        model, constrained(structured_outputs={"json": CITY}, temperature=1.5, n=5, seed=1, stream=True)
    )

    texts = [text_of(events, i) for i in range(5)]
    assert all(json.loads(text).keys() == {"city", "days"} for text in texts)
    assert len(set(texts)) > 1


async def test_a_stream_and_a_whole_answer_are_the_same_text_cached_or_not(model: LlamaCppModel):
    first = await written(model, structured_outputs={"json": CITY})

    assert await written(model, structured_outputs={"json": CITY}, stream=True) == first
    assert await written(model, structured_outputs={"json": CITY}) == first


async def test_text_prompts_are_held_to_it_behind_their_echo(model: LlamaCppModel):
    prompts = [TextPrompt(text="The answer is "), TextPrompt(text="I say ")]
    events = await events_of(
        model, constrained(prompts, structured_outputs={"choice": ["yes", "no"]}, echo=True)
    )

    assert text_of(events, 0) in ("The answer is yes", "The answer is no")
    assert text_of(events, 1) in ("I say yes", "I say no")


async def test_logprobs_are_the_models_own_whatever_is_masked(model: LlamaCppModel):
    events = await events_of(model, constrained(structured_outputs={"choice": ["zzqx"]}, logprobs=1))
    first = logprobs_of(events)[0]

    assert first.chosen.token != first.top[0].token
    assert -100 < first.chosen.logprob < first.top[0].logprob


async def test_sequences_that_were_preempted_go_on_where_they_were():
    regex = {"structured_outputs": {"regex": "(one two three ){30}end"}}
    async with a_model(kv_unified=True, n_ctx=64, num_slots=4) as model:
        asked = constrained(TextPrompt(text="Count: "), n=4, temperature=1.0, max_tokens=24, **regex)
        events = await events_of(model, asked, patience_s=200)

    assert [text_of(events, i) for i in range(4)] == [("one two three " * 8).rstrip()] * 4


async def test_a_constraint_that_cannot_be_followed_ends_its_request_and_no_other(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch
):
    def fail(self: Matcher) -> Any:
        raise BackendFailed("The answer's constraint cannot be followed any further")

    monkeypatch.setattr(Matcher, "allowed", fail)

    with pytest.raises(BackendFailed, match="constraint"):
        await written(model, structured_outputs={"json": CITY}, n=3, temperature=1.0)
    assert (await written(model))[0]
    assert model.running == 0


async def test_no_allowed_token_in_the_middle_is_an_error(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch
):
    allowed = Matcher.allowed
    monkeypatch.setattr(Matcher, "allowed", lambda self: allowed(self) & False)

    with pytest.raises(BackendFailed, match="no token"):
        await written(model, structured_outputs={"json": CITY})


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"structured_outputs": {"json": {"not": {}}}}, InvalidGrammar, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "("}}, InvalidGrammar, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "x"}}, InvalidGrammar, "structured_outputs.grammar"),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            UnsupportedParameter,
            "structured_outputs.structural_tag",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_refused_before_anything_happens(
    model: LlamaCppModel, fields: dict[str, Any], error: type[Exception], param: str
):
    with pytest.raises(error) as refused:
        await anext(model.generate(constrained(**fields)))

    assert getattr(refused.value, "param", None) == param


async def test_unconstrained_neighbours_write_what_they_write_alone(model: LlamaCppModel):
    alone = await written(model, max_tokens=20)
    beside, _, _ = await asyncio.gather(
        written(model, max_tokens=20),
        written(model, structured_outputs={"json": CITY}),
        written(model, structured_outputs={"regex": "[a-z]+"}),
    )

    assert beside == alone
