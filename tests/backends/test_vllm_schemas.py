"""Schemas that vLLM's compiler takes and does not enforce: what the real one was seen to let through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.errors import InvalidGrammar, InvalidParameter, ServiceError, UnsupportedParameter
from backends.types import ChatPrompt, GenerationRequest, SamplingParams
from backends.vllm.dialect import GENERIC, VLLM, Dialect
from backends.vllm.refusals import about
from backends.vllm.schemas import unenforced
from backends.vllm.wire import plan_of
from tests.backends.contract import CHAT, CITY, request
from tests.backends.generated_schemas import generated

PET = {"type": "object", "properties": {"kind": {"const": "pet"}}, "required": ["kind"]}
CAR = {"type": "object", "properties": {"kind": {"enum": ["car", "bus"]}}}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {}}, "not"),
        ({"type": "string", "not": {"const": "a"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "dependentSchemas": {"a": {}}}, "dependentSchemas"),
        ({"contains": {"type": "string"}}, "contains"),
        ({"minLength": 3}, "minLength"),
        ({"pattern": "^b"}, "pattern"),
        ({"minimum": 3}, "minimum"),
        ({"multipleOf": 2}, "multipleOf"),
        ({"required": ["a"]}, "required"),
        ({"anyOf": [{"type": "string"}], "properties": {}}, "properties"),
        ({"$ref": "#/$defs/a", "minLength": 3, "$defs": {"a": {"type": "string"}}}, "minLength"),
        ({"type": "string", "enum": ["a"], "minLength": 3}, "minLength"),
        ({"type": "integer", "oneOf": [{"minimum": 3}]}, "minimum"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [CAR, {**CAR, "required": ["kind"]}]}, "oneOf"),
        ({"type": "object", "properties": {"a": {"items": {"not": {}}}}}, "not"),
        ({"$defs": {"a": {"not": {}}}, "type": "array", "items": {"$ref": "#/$defs/a"}}, "not"),
    ],
)
def test_what_would_be_dropped_is_named(schema: dict[str, Any], keyword: str):
    assert unenforced(schema) == keyword


@pytest.mark.parametrize(
    "schema",
    [
        {},
        CITY,
        True,
        {"$ref": "#/$defs/a", "description": "x", "default": 1, "$defs": {"a": {"type": "string"}}},
        {"type": ["string", "null"], "minLength": 3, "title": "x"},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "x"},
        {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        {"oneOf": [PET, CAR]},
        {"oneOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/c"}], "$defs": {"p": PET, "c": CAR}},
        {"type": "object", "properties": {"not": {"type": "string"}, "minLength": {"type": "integer"}}},
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"allOf": [{"$ref": "#/$defs/p"}], "$defs": {"p": PET}},
        {"enum": [1, "a"], "type": "string"},
        {"default": {"not": {}}},
    ],
    ids=str,
)
def test_what_is_enforced_or_known_to_the_server_goes_through(schema: Any):
    assert unenforced(schema) is None


def test_schemas_as_callers_write_them_go_through():
    assert [schema for schema in generated(100) if unenforced(schema) is not None] == []


def asked(**fields: Any) -> GenerationRequest:
    return msgspec.structs.replace(request("m", CHAT), **fields)


def body(wanted: GenerationRequest, dialect: Dialect = VLLM) -> dict[str, Any]:
    return plan_of(wanted, "m", dialect, context_length=512).body


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": CITY, **fields}}


BAD = {"type": "string", "not": {"const": "a"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"json": BAD}}, "structured_outputs.json"),
        (
            {
                "prompts": (
                    ChatPrompt(messages=CHAT.messages, tools=[tool(), tool(strict=True, parameters=BAD)]),
                )
            },
            "tools[1].function.parameters",
        ),
    ],
)
def test_a_schema_that_vllm_would_not_enforce_is_refused_by_name(fields: dict[str, Any], param: str):
    with pytest.raises(InvalidGrammar, match="'not'") as refused:
        body(asked(**fields))

    assert refused.value.param == param
    assert body(asked(**fields), GENERIC)


@pytest.mark.parametrize(
    ("choice", "given", "strict"),
    [
        ("required", {}, True),
        ({"type": "function", "function": {"name": "f"}}, {}, True),
        ("required", {"strict": False}, False),
        ("required", {"parameters": BAD}, None),
        ("auto", {}, None),
    ],
)
def test_the_arguments_of_a_call_that_must_come_are_held_to_their_schema(
    choice: Any, given: dict[str, Any], strict: bool | None
):
    chat = ChatPrompt(messages=CHAT.messages, tools=[tool(**given)])
    (sent,) = body(asked(prompts=(chat,), tool_choice=choice))["tools"]

    assert sent["function"].get("strict") is strict
    assert "strict" not in chat.tools[0]["function"] or "strict" in given  # type: ignore[index]


@pytest.mark.parametrize(
    ("constraint", "error", "named"),
    [
        ("grammar", InvalidGrammar("x", param="response_format"), (InvalidGrammar, "grammar")),
        (
            "structured_outputs.regex",
            InvalidGrammar("x", param="grammar"),
            (InvalidGrammar, "structured_outputs.regex"),
        ),
        (
            "structured_outputs.regex",
            UnsupportedParameter("invalid regex: not supported"),
            (InvalidGrammar, "structured_outputs.regex"),
        ),
        (
            "structured_outputs.json",
            InvalidGrammar("x", param="structured_outputs"),
            (InvalidGrammar, "structured_outputs.json"),
        ),
        (
            "response_format",
            InvalidGrammar("x", param="response_format.json_schema.schema"),
            (InvalidGrammar, "response_format.json_schema.schema"),
        ),
        ("grammar", InvalidParameter("a schema", param="seed"), (InvalidParameter, "seed")),
        (None, UnsupportedParameter("no grammar"), (UnsupportedParameter, None)),
    ],
)
def test_what_the_server_says_of_a_constraint_is_said_of_the_one_that_was_given(
    constraint: str | None, error: ServiceError, named: tuple[type[ServiceError], str | None]
):
    found = about(constraint, error)

    assert (type(found), found.param) == named  # type: ignore[union-attr]


@pytest.mark.parametrize("grammar", ["root ::= root", 'root ::= "a" root', "root ::= x\nx ::= y\ny ::= x"])
def test_a_grammar_that_nothing_satisfies_is_refused_before_it_is_sent(grammar: str):
    for fields, param in (
        ({"sampling": SamplingParams(grammar=grammar)}, "grammar"),
        ({"structured_outputs": {"grammar": grammar}}, "structured_outputs.grammar"),
    ):
        with pytest.raises(InvalidGrammar, match="nothing satisfies it") as refused:
            body(asked(**fields))
        assert refused.value.param == param


@pytest.mark.parametrize(
    "grammar", ['root ::= root "a" | "b"', "what is this", 'start: "a"', "root ::= <think>"]
)
def test_any_other_grammar_is_the_servers_to_judge(grammar: str):
    assert body(asked(structured_outputs={"grammar": grammar}))
