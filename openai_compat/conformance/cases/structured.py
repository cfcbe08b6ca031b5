"""Constrained output, tools and reasoning: served as OpenAI's API says, or refused so that a client can tell."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from openai_compat.conformance.api import CHAT, MAY_REFUSE, Api, contract_error, error_of, offered
from openai_compat.conformance.check import extension, given, openai_api

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
QUESTION = (
    "What will the weather be in Rome for the next two days? Answer with the city and the days, as JSON."
)


def tool(name: str, parameters: dict[str, Any] = CITY) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": f"Get the {name}", "parameters": parameters},
    }


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


TOOLS = [tool("weather"), tool("time")]


def served(response: httpx.Response) -> dict[str, Any]:
    """The only choice. Raises: NotOffered."""
    choice: dict[str, Any] = offered(response)["choices"][0]
    return choice


def meets_city(text: str) -> bool:
    value = json.loads(text)
    return (
        isinstance(value, dict)
        and set(value) == {"city", "days"}
        and value["city"] in ("Oslo", "Rome")
        and type(value["days"]) is int
        and 1 <= value["days"] <= 3
    )


@openai_api
def json_object__it_gives_an_object_and_nothing_else_or_is_refused(service: Api) -> None:
    choice = served(service.chat(QUESTION, response_format={"type": "json_object"}, max_tokens=200))

    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    else:
        assert choice["message"]["content"].lstrip().startswith("{")


@openai_api
def json_schema__the_answer_satisfies_it_or_it_is_refused(service: Api) -> None:
    choice = served(service.chat(QUESTION, response_format=form(CITY), max_tokens=200))

    assert choice["finish_reason"] == "stop"
    assert meets_city(choice["message"]["content"])


@openai_api
def json_schema_streams__the_stream_satisfies_it_too_or_it_is_refused(service: Api) -> None:
    fields: dict[str, Any] = {"response_format": form(CITY), "max_tokens": 200}
    plain = service.chat(QUESTION, **fields)
    if plain.status_code != 200:
        error_of(service.chat(QUESTION, **fields, stream=True), MAY_REFUSE)

    served(plain)
    assert meets_city(service.stream_chat(QUESTION, **fields).text())


@openai_api
@given(
    "schema",
    [
        {"type": "strong"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"},
        {"type": "array", "items": "string"},
        {"enum": []},
        {"$ref": "https://example.com/schema.json"},
        "object",
        [],
        None,
    ],
    ids=repr,
)
def broken_schemas__a_schema_that_is_none_is_refused(service: Api, schema: Any) -> None:
    error_of(service.chat(QUESTION, response_format=form(schema)))
    error_of(service.chat(QUESTION, response_format=form(schema), stream=True))
    service.assert_alive()


@openai_api
@given("value", [{"type": "json_schema"}, {"type": "xml"}, {}, "json_object", [1], 5])
def broken_formats__a_format_that_is_none_is_refused(service: Api, value: Any) -> None:
    error_of(service.chat(QUESTION, response_format=value))


@openai_api
def huge_schemas__they_are_refused_and_the_server_lives(service: Api) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}
    long = {"type": "string", "pattern": "((a{1000}){1000}){1000}"}

    for schema in (deep, wide, long):
        error_of(service.chat(QUESTION, response_format=form(schema)))
    service.assert_alive()


@openai_api
def format_text__it_changes_nothing(service: Api) -> None:
    assert service.text(response_format={"type": "text"}) == service.text()


@openai_api
@given(
    ("choice", "names"),
    [
        ("required", {"weather", "time"}),
        ({"type": "function", "function": {"name": "time"}}, {"time"}),
    ],
    ids=["required", "named"],
)
def tool_choice__what_must_be_called_is_called_or_refused(service: Api, choice: Any, names: set[str]) -> None:
    response = service.chat(QUESTION, tools=TOOLS, tool_choice=choice, max_tokens=200)
    if response.status_code != 200:
        assert "tools" not in service.entry().get("capabilities", ()), response.text
    made = served(response)
    calls = made["message"]["tool_calls"]

    assert made["finish_reason"] in ("tool_calls", "stop")
    assert {call["function"]["name"] for call in calls} <= names
    assert all(call["id"] and call["type"] == "function" for call in calls)
    assert all(meets_city(call["function"]["arguments"]) for call in calls)


@openai_api
def tool_choice_none__text_and_no_call(service: Api) -> None:
    made = served(service.chat(QUESTION, tools=TOOLS, tool_choice="none"))

    assert made["message"]["content"]
    assert not made["message"].get("tool_calls")


@openai_api
@given(
    "fields",
    [
        {"tools": []},
        {"tools": [5]},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {}}]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": "none"}}]},
        {"tools": [*TOOLS, TOOLS[0]]},
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": "perhaps"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
    ],
    ids=repr,
)
def bad_tools__they_are_refused(service: Api, fields: dict[str, Any]) -> None:
    error_of(service.chat(QUESTION, **fields))


@extension
@given(
    ("fields", "param"),
    [
        ({"tools": TOOLS}, "tools"),
        ({"response_format": form(CITY)}, "response_format"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def what_the_backend_cannot_do_is_refused_by_name(service: Api, fields: dict[str, Any], param: str) -> None:
    response = service.chat(QUESTION, **fields)

    if response.status_code != 200:
        contract_error(response, 400, "invalid_request_error", "unsupported_parameter", param)


@extension
@given("value", [{}, {"json": {}, "regex": "a"}, {"jsonn": {}}, {"choice": []}, "json"])
def structured_outputs_of_another_shape_are_a_422(service: Api, value: Any) -> None:
    body = service.chat_body(QUESTION, structured_outputs=value)

    contract_error(service.post(CHAT, body), 422, "invalid_request_error", "validation_error")


@extension
@given(
    ("outputs", "pattern"),
    [({"regex": "[0-9]{2}:[0-9]{2}"}, r"[0-9]{2}:[0-9]{2}"), ({"choice": ["yes", "no"]}, "yes|no")],
    ids=["regex", "choice"],
)
def structured_outputs_hold_the_answer_or_are_refused(
    service: Api, outputs: dict[str, Any], pattern: str
) -> None:
    choice = served(service.chat(QUESTION, structured_outputs=outputs, max_tokens=40))

    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["message"]["content"])
