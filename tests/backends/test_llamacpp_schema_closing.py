"""Which objects hold what their schema names and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from backends.llamacpp.schema_closing import closed

OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
SHUT: dict[str, Any] = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OPEN, SHUT),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": SHUT}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$ref": "#/$defs/o", "$defs": {"o": OPEN}}, {"$ref": "#/$defs/o", "$defs": {"o": SHUT}}),
        ({"type": "array", "prefixItems": [OPEN]}, {"type": "array", "prefixItems": [SHUT]}),
        (
            {"properties": {"properties": OPEN}, "additionalProperties": True},
            {"properties": {"properties": SHUT}, "additionalProperties": True},
        ),
    ],
)
def test_objects_that_name_members_are_closed(schema: Any, expected: Any):
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**OPEN, "additionalProperties": {"type": "integer"}},
        {**OPEN, "patternProperties": {"^b": {}}},
        {"allOf": [OPEN, {"properties": {"b": {}}}]},
        {"oneOf": [OPEN, {"properties": {"b": {}}, "required": ["b"]}]},
        {**OPEN, "anyOf": [{"properties": {"b": {}}}, {"required": ["a"]}]},
        {**OPEN, "$ref": "#/$defs/o", "$defs": {"o": {"properties": {"b": {}}}}},
        {"const": {"properties": {}}},
        {"enum": [{"properties": {}}]},
        True,
    ],
)
def test_everything_else_stays_as_it_is(schema: Any):
    assert closed(schema) == schema


def test_all_of_them_are_closed_when_the_caller_asks():
    assert closed({"allOf": [OPEN]}, always=True) == {"allOf": [SHUT]}


def test_the_callers_schema_is_not_touched():
    schema = {"type": "array", "items": {"anyOf": [OPEN]}}
    closed(schema)

    assert schema == {
        "type": "array",
        "items": {"anyOf": [{"type": "object", "properties": OPEN["properties"]}]},
    }
