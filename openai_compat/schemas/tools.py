"""Tools and the choice among them: their shapes. Whether a model can honour them is decided later, by its backend."""

from __future__ import annotations

import re
from typing import Any, Final

from typing_extensions import override

from openai_compat.schemas.fields import Boolean, Kind, ListOf, Object, OneOf, Record, Schema, Text
from openai_compat.schemas.problems import INVALID, Loc, Problems

MAX_TOOLS: Final = 128


class Name(Kind):
    """What a function or a schema may be called."""

    _pattern = r"[A-Za-z0-9_.-]{1,64}"
    _matches = re.compile(_pattern).fullmatch
    _msg = "Name should be 1 to 64 letters, digits, dots, dashes and underscores"

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is str and self._matches(value):
            return value
        return problems.add("string_pattern_mismatch", loc, self._msg, value)

    @property
    @override
    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{self._pattern}$"}


NAME: Final = Name()

_DEFINITION: Final = Record(
    {"name": NAME, "description": Text(), "parameters": Object(), "strict": Boolean()}, required=("name",)
)
_NAMED: Final = Record({"name": NAME}, required=("name",))


def _function(kind: Record) -> Record:
    """The current form: a tool, of which `function` is the only type."""
    return Record({"type": OneOf("function"), "function": kind}, required=("type", "function"))


class Definitions(Kind):
    """1–128 functions with different names, each as `item`: a tool, or the bare definition of the older form."""

    def __init__(self, item: Record) -> None:
        self._list = ListOf(item, min_items=1, max_items=MAX_TOOLS)

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        checked = self._list.check(value, loc, problems)
        if checked is INVALID:
            return INVALID
        before = problems.count
        names: set[str] = set()
        for index, item in enumerate(checked):
            name = definition_of(item)["name"]
            if name in names:
                inside = ("function",) if "function" in item else ()
                at = (*loc, index, *inside, "name")
                problems.add("value_error", at, f"Function {name!r} is given twice", name)
            names.add(name)
        return INVALID if problems.count > before else checked

    @property
    @override
    def schema(self) -> Schema:
        return self._list.schema


class Choice(Kind):
    """One of `words`, or an object that names one function."""

    def __init__(self, words: tuple[str, ...], named: Record) -> None:
        self._words = words
        self._named = named
        quoted = ", ".join(f"'{word}'" for word in words)
        self._msg = f"Input should be {quoted} or an object that names a function"

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is dict:
            return self._named.check(value, loc, problems)
        if type(value) is str and value in self._words:
            return value
        return problems.add("literal_error", loc, self._msg, value)

    @property
    @override
    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string", "enum": list(self._words)}, self._named.schema]}


TOOLS: Final = Definitions(_function(_DEFINITION))
FUNCTIONS: Final = Definitions(_DEFINITION)
TOOL_CHOICE: Final = Choice(("none", "auto", "required"), _function(_NAMED))
FUNCTION_CALL: Final = Choice(("none", "auto"), _NAMED)


def definition_of(item: dict[str, Any]) -> dict[str, Any]:
    """What is inside a tool; the older form is nothing but that."""
    inside: dict[str, Any] = item.get("function", item)
    return inside


def check_tools_together(values: dict[str, Any], problems: Problems) -> None:
    """One form only; a choice needs functions, and may name only one of them."""
    if "tools" in values and "functions" in values:
        msg = "functions is the older form of tools: only one of them may be given"
        problems.add("value_error", ("functions",), msg, None)
    for choice_name, tools_name in (("tool_choice", "tools"), ("function_call", "functions")):
        choice = values.get(choice_name)
        if choice is None:
            continue
        tools = values.get(tools_name)
        if tools is None:
            msg = f"{choice_name} is only allowed when {tools_name} are given"
            problems.add("value_error", (choice_name,), msg, choice)
        elif type(choice) is dict:
            named = definition_of(choice)["name"]
            if all(definition_of(tool)["name"] != named for tool in tools):
                msg = f"{named!r} is not among the {tools_name}"
                problems.add("value_error", (choice_name,), msg, choice)


def tools_of(values: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The tools in OpenAI's current form, whichever one they were given in; keys whose value was null are absent."""
    given = values.get("tools") or values.get("functions")
    if given is None:
        return None
    return [{"type": "function", "function": _without_nulls(definition_of(item))} for item in given]


def tool_choice_of(values: dict[str, Any]) -> str | dict[str, Any] | None:
    """The choice in the current form; None where the caller made none."""
    choice = values.get("tool_choice") or values.get("function_call")
    if type(choice) is dict:
        return {"type": "function", "function": {"name": definition_of(choice)["name"]}}
    return choice


def _without_nulls(function: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in function.items() if value is not None}
