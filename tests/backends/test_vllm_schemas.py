"""Schemas that vLLM's compiler takes and does not enforce: what the real one was seen to let through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.errors import InvalidGrammar, InvalidParameter, ServiceError, UnsupportedParameter
from backends.types import ChatPrompt, GenerationRequest, SamplingParams
from backends.vllm.dialect import GENERIC, VLLM, Dialect
from backends.vllm.refusals import about
from backends.vllm.schemas import unenforced, unenforced_in_calls
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
        ({"type": "object", "required": ["a"]}, "required"),
        ({"type": "object", "properties": {"a": {}}, "required": ["a", "b"]}, "required"),
        ({"type": "string", "enum": ["a", 1]}, "type"),
        ({"type": ["integer", "null"], "const": True}, "type"),
        ({"type": "integer", "enum": [1, 1.5]}, "type"),
        ({"type": "object", "enum": [None]}, "type"),
        ({"type": "string", "anyOf": [{"type": "integer"}, {"type": "string"}]}, "type"),
        ({"type": "string", "oneOf": [{"const": 1}]}, "type"),
        ({"type": "object", "allOf": [{}]}, "type"),
        ({"type": "string", "$ref": "#/$defs/a", "$defs": {"a": {}}}, "type"),
        ({"type": "object", "anyOf": [{"anyOf": [PET]}]}, "type"),
        ({"$ref": "#pet", "$defs": {"p": {"$anchor": "pet", **PET}}}, "$ref"),
        ({"allOf": [{"type": "string"}], "minLength": 3, "type": "string"}, "minLength"),
        ({"allOf": [{"$ref": "#/$defs/p"}], "properties": {"a": {}}, "$defs": {"p": PET}}, "properties"),
        ({"anyOf": [{"type": "string"}], "properties": {}}, "properties"),
        ({"$ref": "#/$defs/a", "minLength": 3, "$defs": {"a": {"type": "string"}}}, "minLength"),
        ({"type": "string", "enum": ["a"], "minLength": 3}, "minLength"),
        ({"oneOf": [{"minimum": 3}]}, "minimum"),
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
        {"enum": [1, 2.0], "type": "integer"},
        {"enum": [1.5, True, None, "a", [], {}]},
        {
            "enum": [1.5, True, None, "a", [], {}],
            "type": ["number", "boolean", "null", "string", "array", "object"],
        },
        {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        {
            "type": "object",
            "anyOf": [PET, {"properties": {"a": {}}}, {"$ref": "#/$defs/p"}],
            "$defs": {"p": PET},
        },
        {"type": ["number", "null"], "anyOf": [{"type": "integer"}, {"const": None}]},
        {"type": "object", "$ref": "#/$defs/p", "$defs": {"p": PET}},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"allOf": [{"type": "string"}, {"minLength": 3, "type": "string"}], "type": "string"},
        {"default": {"not": {}}},
    ],
    ids=str,
)
def test_what_is_enforced_or_known_to_the_server_goes_through(schema: Any):
    assert unenforced(schema) is None


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "integer", "multipleOf": 2}, "multipleOf"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": ["array", "null"], "contains": {}}, "contains"),
        ({"type": "string", "format": "colour"}, "format"),
        ({"type": "string", "pattern": "^a", "minLength": 3}, "minLength"),
        ({"type": "string", "format": "date", "maxLength": 3}, "maxLength"),
        (
            {"type": "object", "propertyNames": {"type": "string", "pattern": "^a"}, "properties": {}},
            "propertyNames",
        ),
        (
            {"type": "object", "propertyNames": {"type": "string", "pattern": "^a", "maxLength": 2}},
            "propertyNames",
        ),
        ({"type": "object", "patternProperties": {"^a": {}}, "properties": {}}, "patternProperties"),
        ({"type": "object", "patternProperties": {"^a": {}, "^b": {}}}, "patternProperties"),
        ({"type": "array", "items": {"allOf": [{"type": "string"}, {"enum": ["a"]}]}}, "allOf"),
        ({"not": {}}, "not"),
    ],
)
def test_what_would_be_dropped_of_a_calls_schema_only_is_named_there(schema: dict[str, Any], keyword: str):
    assert unenforced_in_calls(schema) == keyword
    assert unenforced(schema) == (keyword if keyword == "not" else None)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": False},
        {"type": "string", "format": "date"},
        {"type": "string", "minLength": 3},
        {"type": "object", "propertyNames": {"type": "string", "pattern": "^a"}},
        {"type": "object", "patternProperties": {"^a": {}}},
        {"type": "object", "properties": {"format": {"type": "string"}, "multipleOf": {"type": "integer"}}},
        {"allOf": [{"type": "string"}]},
        CITY,
    ],
    ids=str,
)
def test_what_calls_are_held_to_goes_through(schema: dict[str, Any]):
    assert unenforced_in_calls(schema) is None


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


def functions(wanted: GenerationRequest) -> list[dict[str, Any]]:
    return [tool["function"] for tool in body(wanted)["tools"]]


def with_tools(*tools: dict[str, Any], **fields: Any) -> GenerationRequest:
    return asked(prompts=(ChatPrompt(messages=CHAT.messages, tools=list(tools)),), **fields)


NAMED = {"type": "function", "function": {"name": "f"}}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}}
BESIDE = (
    FORM,
    {"structured_outputs": {"choice": ["a"]}},
    {"sampling": SamplingParams(grammar='root ::= "a"')},
)


@pytest.mark.parametrize(
    ("choice", "given", "strict"),
    [
        ("required", {}, True),
        (NAMED, {}, True),
        ("required", {"strict": False}, False),
        ("required", {"strict": False, "parameters": BAD}, False),
        ("auto", {}, None),
        (None, {}, None),
        ("none", {}, None),
    ],
)
def test_the_arguments_of_a_call_that_must_come_are_held_to_their_schema(
    choice: Any, given: dict[str, Any], strict: bool | None
):
    mine = tool(**given)
    (sent,) = functions(with_tools(mine, tool_choice=choice))

    assert sent.get("strict") is strict
    assert mine == tool(**given)


def test_only_the_schema_of_the_function_that_must_be_called_counts():
    other = tool(name="g", parameters=BAD)

    assert [sent.get("strict") for sent in functions(with_tools(tool(), other, tool_choice=NAMED))] == [
        True,
        None,
    ]


@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
@pytest.mark.parametrize("schema", [BAD, {"type": "integer", "multipleOf": 3}], ids=str)
def test_a_call_that_must_come_and_cannot_be_held_to_its_schema_is_refused_by_name(
    choice: Any, schema: dict[str, Any]
):
    with pytest.raises(InvalidGrammar, match="would not enforce") as refused:
        body(with_tools(tool(parameters=schema), tool_choice=choice))

    assert refused.value.param == "tools[0].function.parameters"
    assert body(asked(prompts=(ChatPrompt(messages=CHAT.messages, tools=[tool(parameters=schema)]),)))


@pytest.mark.parametrize("given", [{"parameters": None}, {"parameters": {}}, {}], ids=str)
def test_a_function_that_must_be_called_and_names_no_arguments_gets_an_empty_object(given: dict[str, Any]):
    bare = {"type": "function", "function": {"name": "f", **given}}
    (sent,) = functions(with_tools(bare, tool_choice="required"))

    assert sent["parameters"] == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_a_form_beside_a_call_that_must_come_is_refused_by_name(choice: Any, beside: dict[str, Any]):
    (name,) = beside
    with pytest.raises(UnsupportedParameter) as refused:
        body(with_tools(tool(), tool_choice=choice, **beside))

    assert refused.value.param == ("grammar" if name == "sampling" else name)


@pytest.mark.parametrize("choice", ["auto", None])
@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_beside_a_form_calls_that_may_come_are_held_to_their_schemas(
    choice: str | None, beside: dict[str, Any]
):
    """Without a strict function vLLM would let none come."""
    tools = tool(), tool(name="g", parameters=BAD), tool(name="h", strict=False)

    assert [sent.get("strict") for sent in functions(with_tools(*tools, tool_choice=choice, **beside))] == [
        True,
        None,
        False,
    ]


@pytest.mark.parametrize("given", [{"strict": False}, {"parameters": BAD}], ids=str)
def test_a_form_that_would_leave_no_room_for_calls_is_refused_by_name(given: dict[str, Any]):
    with pytest.raises(UnsupportedParameter) as refused:
        body(with_tools(tool(**given), **FORM))

    assert refused.value.param == "response_format"
    assert body(with_tools(tool(**given), tool_choice="none", **FORM))


def test_beside_calls_that_may_come_an_answer_is_held_by_what_holds_calls():
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "integer", "multipleOf": 3}},
    }
    with pytest.raises(InvalidGrammar, match="'multipleOf'"):
        body(with_tools(tool(), response_format=form))

    assert body(with_tools(tool(), tool_choice="none", response_format=form))


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
