"""Constrained output: the shapes of `response_format` and `structured_outputs`. How large they may be: `limits`."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from typing_extensions import override

from openai_compat.schemas.fields import (
    Boolean,
    Kind,
    ListOf,
    Object,
    Record,
    Schema,
    Text,
)
from openai_compat.schemas.problems import INVALID, Loc, Problems
from openai_compat.schemas.tagged import Tagged
from openai_compat.schemas.tools import NAME

MAX_CHOICES: Final = 1024


RESPONSE_FORMAT: Final = Tagged(
    "type",
    {
        "text": Record({}),
        "json_object": Record({}),
        "json_schema": Record(
            {
                "json_schema": Record(
                    {"name": NAME, "description": Text(), "schema": Object(), "strict": Boolean()},
                    required=("name", "schema"),
                )
            },
            required=("json_schema",),
        ),
    },
)
"""OpenAI's form of a constraint."""


class JsonText(Kind):
    """A JSON object, or the same as text. Gives the object, or with `as_text` the text."""

    def __init__(self, *, as_text: bool = False) -> None:
        self._as_text = as_text

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        found = value
        if type(value) is str:
            try:
                found = msgspec.json.decode(value)
            except (msgspec.MsgspecError, RecursionError):
                return problems.add("json_invalid", loc, "Input should be valid JSON", value)
        if type(found) is not dict:
            return problems.add("dict_type", loc, "Input should be a valid object", value)
        if not self._as_text:
            return found
        return value if type(value) is str else msgspec.json.encode(found).decode()

    @property
    @override
    def schema(self) -> Schema:
        return {"type": ["object", "string"]}


class _True(Kind):
    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        return value if value is True else problems.add("literal_error", loc, "Input should be true", value)

    @property
    @override
    def schema(self) -> Schema:
        return {"const": True}


class StructuredOutputs(Kind):
    """vLLM's form: exactly one constraint, and options. Gives it without nulls, a schema as an object, and a structural
    tag as text, the only form in which vLLM takes it."""

    constraints: Final[dict[str, Kind]] = {
        "json": JsonText(),
        "regex": Text(min_length=1),
        "choice": ListOf(Text(min_length=1), min_items=1, max_items=MAX_CHOICES),
        "grammar": Text(min_length=1),
        "json_object": _True(),
        "structural_tag": JsonText(as_text=True),
    }
    options: Final[dict[str, Kind]] = {
        "disable_fallback": Boolean(),
        "disable_any_whitespace": Boolean(),
        "disable_additional_properties": Boolean(),
        "whitespace_pattern": Text(),
    }
    _members = Record({**constraints, **options})

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if self._members.check(value, loc, problems) is INVALID:
            return INVALID
        given = {key: member for key, member in value.items() if member is not None}
        before = problems.count
        for key in given:
            if key not in self.constraints and key not in self.options:
                problems.add("extra_forbidden", (*loc, key[:128]), "Extra inputs are not permitted", None)
        found = [key for key in self.constraints if key in given]
        if len(found) != 1:
            names = ", ".join(self.constraints)
            msg = f"Exactly one of {names} should be given, not {len(found)}"
            problems.add("value_error", loc, msg, found)
        if problems.count > before:
            return INVALID
        kind = self.constraints[found[0]]
        return {**given, found[0]: kind.check(given[found[0]], loc, problems)}

    @property
    @override
    def schema(self) -> Schema:
        return {
            **self._members.schema,
            "additionalProperties": False,
            "oneOf": [{"required": [key]} for key in self.constraints],
        }


def response_format_of(values: dict[str, Any]) -> dict[str, Any] | None:
    """The format that constrains the answer; None where it is plain text."""
    form: dict[str, Any] | None = values.get("response_format")
    return None if form is None or form["type"] == "text" else form


def check_constraints_together(values: dict[str, Any], problems: Problems) -> None:
    """One constraint at a time: which of two an answer met would be chance."""
    given: list[str] = [name for name in ("grammar", "structured_outputs") if name in values]
    if response_format_of(values) is not None:
        given.append("response_format")
    if len(given) > 1:
        msg = f"Only one of {', '.join(sorted(given))} may be given"
        problems.add("value_error", (given[-1],), msg, None)
