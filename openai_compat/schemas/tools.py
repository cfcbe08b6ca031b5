"""Tools and output formats: their shapes. Whether a model can honour them is decided later, by the model."""

from __future__ import annotations

import re
from typing import Any, Final

from typing_extensions import override

from openai_compat.schemas.fields import Kind, Schema, check_length
from openai_compat.schemas.problems import INVALID, Loc, Problems

MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_NAME_MSG: Final = "Name should be 1 to 64 letters, digits, dots, dashes and underscores"


def _check_name(holder: dict[str, Any], loc: Loc, problems: Problems) -> None:
    name = holder.get("name")
    if name is None:
        problems.add("missing", (*loc, "name"), "Field required", None)
    elif type(name) is not str or not _NAME.match(name):
        problems.add("string_pattern_mismatch", (*loc, "name"), _NAME_MSG, name)


def _check_definition(function: Any, loc: Loc, problems: Problems) -> None:
    if type(function) is not dict:
        problems.add("dict_type", loc, "Input should be a valid object", function)
        return
    _check_name(function, loc, problems)
    for key, kind, kind_name in (
        ("description", str, "string"),
        ("parameters", dict, "object"),
        ("strict", bool, "boolean"),
    ):
        value = function.get(key)
        if value is not None and type(value) is not kind:
            name = "dict_type" if kind is dict else f"{kind_name}_type"
            problems.add(name, (*loc, key), f"Input should be a valid {kind_name}", value)


class Tools(Kind):
    """1–128 function definitions with different names."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not list:
            return problems.add("list_type", loc, "Input should be a valid list", value)
        if not check_length(value, 1, MAX_TOOLS, loc, problems):
            return INVALID
        before = problems.count
        names: set[str] = set()
        for index, tool in enumerate(value):
            at = (*loc, index)
            if type(tool) is not dict:
                problems.add("dict_type", at, "Input should be a valid object", tool)
                continue
            if tool.get("type") != "function":
                problems.add("literal_error", (*at, "type"), "Input should be 'function'", tool.get("type"))
                continue
            _check_definition(tool.get("function"), (*at, "function"), problems)
            if problems.count == before:
                name = tool["function"]["name"]
                if name in names:
                    problems.add(
                        "value_error", (*at, "function", "name"), f"Tool {name!r} is given twice", name
                    )
                names.add(name)
        return INVALID if problems.count > before else value

    @property
    @override
    def schema(self) -> Schema:
        tool = {
            "type": "object",
            "required": ["type", "function"],
            "properties": {"type": {"type": "string", "enum": ["function"]}, "function": DEFINITION_SCHEMA},
        }
        return {"type": "array", "minItems": 1, "maxItems": MAX_TOOLS, "items": tool}


class ToolChoice(Kind):
    """`none`, `auto`, `required`, or one function by name."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if value in ("none", "auto", "required"):
            return value
        if type(value) is not dict:
            msg = "Input should be 'none', 'auto', 'required' or an object that names a function"
            return problems.add("literal_error", loc, msg, value)
        before = problems.count
        if value.get("type") != "function":
            problems.add("literal_error", (*loc, "type"), "Input should be 'function'", value.get("type"))
        elif type(value.get("function")) is not dict:
            problems.add(
                "dict_type", (*loc, "function"), "Input should be a valid object", value.get("function")
            )
        else:
            _check_name(value["function"], (*loc, "function"), problems)
        return INVALID if problems.count > before else value

    @property
    @override
    def schema(self) -> Schema:
        named = {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"type": "string", "enum": ["function"]},
                "function": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            },
        }
        return {"anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, named]}


class Functions(Kind):
    """The deprecated form of tools."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not list:
            return problems.add("list_type", loc, "Input should be a valid list", value)
        if not check_length(value, 1, MAX_TOOLS, loc, problems):
            return INVALID
        before = problems.count
        for index, function in enumerate(value):
            _check_definition(function, (*loc, index), problems)
        return INVALID if problems.count > before else value

    @property
    @override
    def schema(self) -> Schema:
        return {"type": "array", "minItems": 1, "maxItems": MAX_TOOLS, "items": DEFINITION_SCHEMA}


class FunctionCall(Kind):
    """The deprecated form of a tool choice."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if value in ("none", "auto"):
            return value
        if type(value) is not dict:
            msg = "Input should be 'none', 'auto' or an object that names a function"
            return problems.add("literal_error", loc, msg, value)
        before = problems.count
        _check_name(value, loc, problems)
        return INVALID if problems.count > before else value

    @property
    @override
    def schema(self) -> Schema:
        named = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
        return {"anyOf": [{"type": "string", "enum": ["none", "auto"]}, named]}


class ResponseFormat(Kind):
    """`text`, `json_object`, or `json_schema` with a schema."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not dict:
            return problems.add("dict_type", loc, "Input should be a valid object", value)
        kind = value.get("type")
        if kind in ("text", "json_object"):
            return value
        if kind != "json_schema":
            msg = "Input should be 'text', 'json_object' or 'json_schema'"
            return problems.add("literal_error", (*loc, "type"), msg, kind)
        before = problems.count
        at = (*loc, "json_schema")
        form = value.get("json_schema")
        if type(form) is not dict:
            return problems.add("dict_type", at, "Input should be a valid object", form)
        _check_name(form, at, problems)
        if type(form.get("schema")) is not dict:
            problems.add("dict_type", (*at, "schema"), "Input should be a JSON schema", form.get("schema"))
        strict = form.get("strict")
        if strict is not None and type(strict) is not bool:
            problems.add("bool_type", (*at, "strict"), "Input should be a valid boolean", strict)
        return INVALID if problems.count > before else value

    @property
    @override
    def schema(self) -> Schema:
        form = {
            "type": "object",
            "required": ["name", "schema"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        }
        return {
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
                "json_schema": form,
            },
        }


def check_tool_choice(values: dict[str, Any], problems: Problems) -> None:
    """A choice needs tools, and may name only one of them."""
    for choice_name, tools_name in (("tool_choice", "tools"), ("function_call", "functions")):
        choice = values.get(choice_name)
        if choice is None:
            continue
        tools = values.get(tools_name)
        if tools is None:
            msg = f"{choice_name} is only allowed when {tools_name} are given"
            problems.add("value_error", (choice_name,), msg, choice)
            continue
        if type(choice) is dict:
            named = choice.get("function", choice)["name"]
            if all(tool.get("function", tool)["name"] != named for tool in tools):
                msg = f"{named!r} is not among the {tools_name}"
                problems.add("value_error", (choice_name,), msg, choice)


DEFINITION_SCHEMA: Final[Schema] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
}
