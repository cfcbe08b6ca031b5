"""What a schema, a regex or a list of choices may cost, and what the refusal says."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidGrammar
from openai_compat.schemas.keywords import MAX_COUNT
from openai_compat.schemas.limits import (
    MAX_GRAMMAR_CHARS,
    MAX_REGEX_CHARS,
    MAX_REGEX_NESTING,
    MAX_REGEX_SIZE,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_NODES,
    check_regex,
    check_response_format,
    check_structured_outputs,
    check_tools,
    regex_size,
)


def check(schema: dict[str, Any]) -> None:
    check_structured_outputs({"json": schema})


def refused(schema: dict[str, Any]) -> str:
    """Where a schema is too large, below its root."""
    with pytest.raises(InvalidGrammar) as caught:
        check(schema)
    assert caught.value.param is not None
    assert caught.value.message.startswith(caught.value.param)
    return caught.value.param.removeprefix("structured_outputs.json").removeprefix(".")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def tool(parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


def test_a_schema_may_be_as_deep_as_the_limit() -> None:
    check(nested(MAX_SCHEMA_DEPTH - 1))

    assert refused(nested(MAX_SCHEMA_DEPTH)).startswith("not.not.")


def test_the_nodes_of_a_schema_are_bounded() -> None:
    check({"enum": [0] * (MAX_SCHEMA_NODES - 2)})

    with pytest.raises(InvalidGrammar, match="more than 20000 nodes"):
        check({"enum": [0] * (MAX_SCHEMA_NODES - 1)})


def test_the_bytes_of_a_schema_are_bounded() -> None:
    check({"title": "x" * (MAX_SCHEMA_BYTES - len('{"title":""}'))})

    with pytest.raises(InvalidGrammar, match="262145 bytes are more than the limit of 262144"):
        check({"title": "x" * (MAX_SCHEMA_BYTES - len('{"title":""}') + 1)})


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"pattern": "a" * (MAX_REGEX_CHARS + 1)}, "pattern"),
        ({"properties": {"a": {"items": {"pattern": "(a{101}){101}"}}}}, "properties.a.items.pattern"),
        ({"allOf": [{}, {"pattern": "a{20000}"}]}, "allOf[1].pattern"),
        ({"patternProperties": {"a{20000}": {}}}, "patternProperties.a{20000}"),
        ({"minItems": MAX_COUNT + 1}, "minItems"),
        ({"maxItems": 1e9}, "maxItems"),
        ({"minLength": MAX_COUNT + 1}, "minLength"),
        ({"$ref": "https://example.com/x.json"}, "$ref"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "items.$ref"),
        ({"$defs": {"properties": {"$ref": "other.json"}}}, "$defs.properties.$ref"),
    ],
)
def test_what_a_keyword_asks_for_is_bounded_and_named(schema: dict[str, Any], where: str) -> None:
    assert refused(schema) == where


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "maxLength": 1_000_000}}},
        {"properties": {"pattern": {"type": "string"}, "$ref": {}, "minItems": {"type": "integer"}}},
        {"properties": {"properties": {"properties": {"$ref": {}}}}},
        {"default": {"pattern": "(" * 200, "$ref": "https://example.com"}},
        {"enum": [{"$ref": "x"}], "const": {"minItems": 1e9}},
        {"required": ["$ref", "pattern"], "x-minItems": "x"},
        {"minItems": MAX_COUNT, "pattern": "[{(]{10000}"},
    ],
)
def test_a_name_or_an_instance_that_looks_like_a_keyword_is_none(schema: dict[str, Any]) -> None:
    check(schema)


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "strong"}, "type"),
        ({"type": []}, "type"),
        ({"type": 5}, "type"),
        ({"type": {"a": 1}}, "type"),
        ({"enum": []}, "enum"),
        ({"enum": "ab"}, "enum"),
        ({"required": "a"}, "required"),
        ({"required": [5]}, "required"),
        ({"properties": []}, "properties"),
        ({"properties": {"a": 5}}, "properties"),
        ({"items": "a"}, "items"),
        ({"anyOf": []}, "anyOf"),
        ({"anyOf": {"a": {}}}, "anyOf"),
        ({"not": [1]}, "not"),
        ({"additionalProperties": "no"}, "additionalProperties"),
        ({"minimum": "0"}, "minimum"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"maxLength": -1}, "maxLength"),
        ({"minItems": 1.5}, "minItems"),
        ({"minItems": True}, "minItems"),
        ({"pattern": 5}, "pattern"),
        ({"$ref": 5}, "$ref"),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"$ref": "#/enum", "enum": [1]}, "$ref"),
        ({"$ref": "#/allOf/1", "allOf": [{}]}, "$ref"),
    ],
)
def test_what_is_no_schema_is_refused_by_the_keyword(schema: dict[str, Any], where: str) -> None:
    assert refused(schema) == where


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"], "items": [{}], "minItems": 2.0, "not": True, "format": "date"},
        {"properties": {"a": {"$ref": "#"}}},
        {"$ref": "#anchor"},
        {"$ref": "#/allOf/0", "allOf": [{}]},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": True}},
        {"type": "object", "properties": {"type": {"type": "string"}, "enum": {}}, "x-type": 5},
        {"exclusiveMinimum": 0.5, "multipleOf": 0.1, "maxLength": 10**9},
    ],
)
def test_what_is_a_schema_passes(schema: dict[str, Any]) -> None:
    check(schema)


TAG: dict[str, Any] = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "json_schema", "json_schema": {}},
        "end": "",
    },
}


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({"type": "json_schema", "json_schema": {"type": "object", "$ref": "#/$defs/a"}}, None),
        ({"type": "json_schema", "json_schema": {"type": "strong"}}, "json_schema.type"),
        ({"type": "regex", "pattern": "a{20000}"}, "pattern"),
    ],
)
def test_a_structural_tag_is_looked_at_where_it_holds_schemas(content: object, where: str | None) -> None:
    outputs = {"structural_tag": json.dumps({**TAG, "format": {**TAG["format"], "content": content}})}

    if where is None:
        check_structured_outputs(outputs)
    else:
        with pytest.raises(InvalidGrammar) as caught:
            check_structured_outputs(outputs)
        assert caught.value.param == f"structured_outputs.structural_tag.format.content.{where}"


def test_what_tools_say_is_read_only_where_it_is_enforced() -> None:
    check_tools([tool({"type": "strong"})], enforced=False)

    with pytest.raises(InvalidGrammar, match=r"parameters\.type: it should be one or several of array, "):
        check_tools([tool({"type": "strong"})], enforced=True)


KEYS = st.sampled_from(
    [
        "type",
        "properties",
        "enum",
        "$ref",
        "minItems",
        "multipleOf",
        "pattern",
        "a",
        "items",
        "anyOf",
        "$defs",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_the_schema_the_check_ends_in_one_of_two_ways(schema: dict[str, Any]) -> None:
    with suppress(InvalidGrammar):
        check(schema)


def test_a_place_is_told_in_a_bounded_form() -> None:
    assert len(refused({"properties": {"x" * 5000: {"properties": {"y" * 5000: {"minItems": 1e9}}}}})) < 256


def test_the_schema_of_a_response_format_is_bounded() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"minItems": MAX_COUNT + 1}}}

    with pytest.raises(
        InvalidGrammar,
        match=r"^response_format\.json_schema\.schema\.minItems: it should",
    ):
        check_response_format(form)
    check_response_format({"type": "json_object"})
    check_response_format(None)


@pytest.mark.parametrize(
    ("fields", "enforced", "is_refused"),
    [
        ({}, False, False),
        ({"strict": False}, False, False),
        ({"strict": True}, False, True),
        ({}, True, True),
    ],
)
def test_the_keywords_of_a_tool_count_only_where_they_are_enforced(
    fields: dict[str, Any], enforced: bool, is_refused: bool
) -> None:
    tools = [tool({}), tool({"pattern": "a{20000}"}, **fields)]

    if is_refused:
        with pytest.raises(InvalidGrammar, match=r"^tools\[1\]\.function\.parameters\.pattern: "):
            check_tools(tools, enforced=enforced)
    else:
        check_tools(tools, enforced=enforced)


def test_the_nodes_of_all_tools_are_counted_together() -> None:
    half = tool({"enum": [0] * (MAX_SCHEMA_NODES // 2)})

    check_tools([half], enforced=False)
    with pytest.raises(InvalidGrammar, match=r"^tools: "):
        check_tools([half, half], enforced=False)


@pytest.mark.parametrize(
    ("outputs", "where"),
    [
        ({"regex": "a" * (MAX_REGEX_CHARS + 1)}, "structured_outputs.regex"),
        ({"json": {}, "whitespace_pattern": "a{20000}"}, "structured_outputs.whitespace_pattern"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARS + 1)}, "structured_outputs.grammar"),
        ({"choice": ["a" * 40_000] * 2}, "structured_outputs.choice"),
        ({"structural_tag": json.dumps(nested(MAX_SCHEMA_DEPTH))}, "structured_outputs.structural_tag"),
    ],
)
def test_every_constraint_has_its_limit(outputs: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        check_structured_outputs(outputs)

    assert str(caught.value.param).startswith(where)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"\d\{3", 3),
        ("[]a{9}]", 1),
        (r"[^]\]{9}]{3}", 3),
        ("a{3}", 3),
        ("a{3,5}", 5),
        ("a{3,}", 3),
        ("a{0}", 1),
        ("a{x}", 4),
        ("(ab){50}", 100),
        ("(?:a(?:bc){2}){3}", 15),
        ("(?P<n>a){4}", 4),
        ("(?=a){2}b", 3),
        ("a*b+c?", 3),
        ("a|bc", 4),
        ("(a", 1),
        ("a)", 2),
        ("[a", 1),
        ("a\\", 2),
    ],
)
def test_the_size_of_a_regex_is_that_of_its_repetitions_written_out(pattern: str, size: int) -> None:
    assert regex_size(pattern)[0] == size


def test_a_regex_may_not_nest_without_end() -> None:
    check_regex("(" * MAX_REGEX_NESTING + ")" * MAX_REGEX_NESTING, "x")

    with pytest.raises(InvalidGrammar, match="101 nested groups are more than the limit of 100"):
        check_regex("(" * (MAX_REGEX_NESTING + 1), "x")


def test_a_regex_may_be_as_large_as_the_limit() -> None:
    check_regex(f"a{{{MAX_REGEX_SIZE}}}", "x")

    with pytest.raises(InvalidGrammar, match="repetitions multiply to more than"):
        check_regex(f"a{{{MAX_REGEX_SIZE}}}b", "x")


ATOMS = st.sampled_from(["a", r"\d", "[bc]", "."])
REGEXES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, st.integers(1, 4)).map(lambda pair: f"(?:{pair[0]}){{{pair[1]}}}"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(REGEXES)
def test_a_regex_of_fixed_length_has_the_size_of_what_it_matches(pattern: str) -> None:
    text = "".join(_written_out(pattern))

    assert re.fullmatch(pattern, text)
    assert regex_size(pattern)[0] == len(text)


def _written_out(pattern: str) -> str:
    """The one text of a regex of `REGEXES`, found by writing its innermost groups out until none is left."""
    text = pattern.replace(r"\d", "1").replace("[bc]", "b").replace(".", "x")
    while "(" in text:
        text = re.sub(r"\((?:\?:)?([^()]*)\)(?:\{(\d)\})?", lambda m: m[1] * int(m[2] or 1), text)
    return text


@given(st.text(alphabet="ab()[]{}\\|*+?,123^:<>="))
def test_any_text_has_a_size(pattern: str) -> None:
    size, nesting = regex_size(pattern)

    assert size >= 0
    assert nesting <= pattern.count("(")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_references_that_lead_to_nothing_but_references_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidGrammar, match="nothing but references"):
        check(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#"}}}}},
    ],
)
def test_a_schema_that_contains_itself_is_allowed(schema: dict[str, Any]) -> None:
    check(schema)
