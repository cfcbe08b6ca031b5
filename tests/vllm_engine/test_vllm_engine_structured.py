"""What is asked of an answer's form on the real vLLM: schemas, regexes, choices, grammars, and calls of tools."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from backends.base import Backend
from backends.errors import InvalidGrammar, InvalidParameter, UnsupportedParameter
from backends.tokenizing import TokenizeRequest
from backends.types import ChatPrompt, TextPrompt, ToolCallDelta
from openai_compat.conformance.cases.structured import QUESTION, meets_city
from openai_compat.conformance.cases.structured import TOOLS as VARIED
from tests.backends.contract import (
    CHAT,
    CITY,
    TOOLS,
    calls_of,
    endings_of,
    events_of,
    finished_of,
    logprobs_of,
    request,
    text_of,
)
from tests.vllm_engine.shared_engine import MODEL

STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
ASKED = ChatPrompt(messages=CHAT.messages, tools=STRICT)
NAMED = {"type": "function", "function": {"name": "time"}}


async def written(backend: Backend, **fields: Any) -> tuple[str, str]:
    """The text, and how it ended."""
    events = await events_of(backend, request(MODEL, **{"max_tokens": 60, **fields}))
    return text_of(events), endings_of(events)[0].finish_reason


async def is_well(backend: Backend) -> bool:
    return finished_of(await events_of(backend, request(MODEL))).usage.completion_tokens == 12


# Forms of an answer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[0-9]{3}-[a-c]+x"}, "[0-9]{3}-[a-c]+x"),
        ({"choice": ["yes", "no", "é🦙"]}, "yes|no|é🦙"),
        ({"grammar": 'root ::= ("a" | "b" [0-9]{2}) "!"'}, "(a|b[0-9]{2})!"),
        ({"grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]{2}/'}, "a[0-9]{2}"),
    ],
)
async def test_a_text_has_the_form_that_it_was_given(
    backend: Backend, outputs: dict[str, Any], pattern: str, stream: bool
) -> None:
    text, reason = await written(backend, structured_outputs=outputs, stream=stream)

    assert re.fullmatch(pattern, text) or (reason == "length" and "+" in pattern)


async def test_a_grammar_of_its_own_field_is_followed(backend: Backend) -> None:
    assert (await written(backend, grammar='root ::= x x\nx ::= "a" | "b"'))[0] in ("aa", "ab", "ba", "bb")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ],
    ids=str,
)
async def test_any_object_is_an_object_or_cut_off(backend: Backend, fields: dict[str, Any]) -> None:
    text, reason = await written(backend, prompt=CHAT, **fields)

    assert text.lstrip().startswith("{")
    assert reason == "length" or isinstance(json.loads(text), dict)


async def test_a_json_that_is_cut_off_is_not_mended(backend: Backend) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 50}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    text, reason = await written(backend, prompt=CHAT, response_format=form, max_tokens=10)

    assert reason == "length"
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)


# What cannot be met


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar": "root ::= root"}, "grammar"),
        ({"grammar": 'root ::= "a" root'}, "grammar"),
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"grammar": 'root ::= ("a"'}, "grammar"),
        ({"structured_outputs": {"grammar": "root ::= root"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "(open"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"json": {"type": "integer", "minimum": 5, "maximum": 3}}},
            "structured_outputs.json",
        ),
    ],
    ids=str,
)
async def test_what_nothing_can_satisfy_is_the_callers_and_harms_nobody(
    backend: Backend, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        await written(backend, **fields)

    assert refused.value.param == param
    assert await is_well(backend)


@pytest.mark.parametrize(
    "option",
    [
        {"disable_any_whitespace": True},
        {"disable_additional_properties": True},
        {"whitespace_pattern": " "},
        {"disable_fallback": True},
    ],
    ids=str,
)
async def test_an_option_that_it_would_not_look_at_is_refused_by_name(
    backend: Backend, option: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        await written(backend, structured_outputs={"json": CITY, **option})

    assert refused.value.param == f"structured_outputs.{next(iter(option))}"


# Calls


@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
async def test_a_streamed_call_is_named_once_and_then_only_written_on(
    backend: Backend, choice: str | dict[str, Any]
) -> None:
    events = await events_of(
        backend, request(MODEL, ASKED, tool_choice=choice, max_tokens=100, stream=True, n=1)
    )
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    first, *others = [delta for delta in deltas if delta.call_index == 0]

    assert first.id
    assert first.name in ("weather", "time")
    assert all((delta.id, delta.name) == (None, None) and delta.arguments for delta in others)
    assert json.loads("".join(delta.arguments for delta in (first, *others))) == {"city": "Oslo"}
    assert text_of(events) == ""
    assert endings_of(events)[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
async def test_the_arguments_of_functions_that_are_not_strict_meet_their_schemas_too(
    backend: Backend, choice: str | dict[str, Any], stream: bool
) -> None:
    chat = ChatPrompt(messages=[{"role": "user", "content": QUESTION}], tools=VARIED)
    events = await events_of(
        backend, request(MODEL, chat, tool_choice=choice, stream=stream, max_tokens=200), patience_s=300
    )
    calls = calls_of(events)

    assert calls
    assert all(meets_city("".join(delta.arguments for delta in call)) for call in calls)


# Calls beside a form of the answer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}}, CITY),
        ({"structured_outputs": {"json": CITY}}, CITY),
        ({"structured_outputs": {"choice": ["{}", '"no"']}}, {"enum": [{}, "no"]}),
        ({"grammar": 'root ::= "{" "}"'}, {"const": {}}),
    ],
    ids=str,
)
async def test_where_calls_may_come_the_answer_is_calls_or_has_its_form(
    backend: Backend, fields: dict[str, Any], answers: dict[str, Any], stream: bool
) -> None:
    """What the model would rather write is decided by its first token."""
    chat = ChatPrompt(messages=CHAT.messages, tools=TOOLS)
    made = {}
    for begins in ("<", "{"):
        tokens = await backend.tokenize(
            TokenizeRequest(model=MODEL, prompt=TextPrompt(text=begins), add_special_tokens=False)
        )
        assert tokens.ids is not None
        bias = {tokens.ids[0]: 60.0}
        wanted = request(MODEL, chat, logit_bias=bias, stream=stream, max_tokens=60, **fields)
        made[begins] = await events_of(backend, wanted, patience_s=300)

    (call, *_) = calls_of(made["<"])
    assert json.loads("".join(delta.arguments for delta in call)) == {"city": "Oslo"}
    assert calls_of(made["{"]) == []
    Draft202012Validator(answers).validate(json.loads(text_of(made["{"])))


@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"grammar": 'root ::= "a"'},
    ],
    ids=str,
)
async def test_a_form_of_the_answer_beside_a_call_that_must_come_is_refused_by_name(
    backend: Backend, fields: dict[str, Any], choice: str | dict[str, Any]
) -> None:
    chat = ChatPrompt(messages=CHAT.messages, tools=TOOLS)
    with pytest.raises(UnsupportedParameter) as refused:
        await events_of(backend, request(MODEL, chat, tool_choice=choice, **fields))

    assert refused.value.param == next(iter(fields))


async def test_no_call_comes_where_none_may(backend: Backend) -> None:
    events = await events_of(backend, request(MODEL, ASKED, tool_choice="none", max_tokens=20))

    assert calls_of(events) == []
    assert text_of(events)


async def test_at_most_one_call_comes_where_they_may_not_be_parallel(backend: Backend) -> None:
    events = await events_of(
        backend,
        request(MODEL, ASKED, tool_choice="required", parallel_tool_calls=False, max_tokens=150),
    )

    assert len(calls_of(events)) == 1


async def test_calls_and_results_of_before_are_told(backend: Backend) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"city": "Oslo"}'}}
    before = [
        *CHAT.messages,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is 12:34."},
    ]
    with_result = ChatPrompt(messages=before, tools=STRICT)

    assert await backend.count_tokens(MODEL, with_result) > await backend.count_tokens(MODEL, ASKED)
    assert text_of(await events_of(backend, request(MODEL, with_result, tool_choice="none", max_tokens=20)))


async def test_choices_call_each_for_themselves(backend: Backend) -> None:
    events = await events_of(
        backend,
        request(MODEL, ASKED, tool_choice=NAMED, n=2, temperature=1.0, seed=1, max_tokens=100),
    )
    ids = [event.id for event in events if isinstance(event, ToolCallDelta) and event.id]

    assert [ending.finish_reason for ending in endings_of(events).values()] == ["tool_calls"] * 2
    assert len(set(ids)) == len(ids) == 2


async def test_a_call_that_is_cut_off_ends_with_length(backend: Backend) -> None:
    events = await events_of(backend, request(MODEL, ASKED, tool_choice=NAMED, max_tokens=3))

    assert endings_of(events)[0].finish_reason == "length"


async def test_a_tool_that_was_not_offered_cannot_be_demanded(backend: Backend) -> None:
    choice = {"type": "function", "function": {"name": "nobody"}}
    with pytest.raises((InvalidParameter, UnsupportedParameter)):
        await events_of(backend, request(MODEL, ASKED, tool_choice=choice))


async def test_calls_have_their_logprobs(backend: Backend) -> None:
    events = await events_of(
        backend,
        request(MODEL, ASKED, tool_choice=NAMED, logprobs=1, max_tokens=60, stream=False),
        patience_s=300,
    )

    assert logprobs_of(events)
