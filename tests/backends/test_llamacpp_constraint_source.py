"""From a request to the text of its constraint."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.errors import UnsupportedParameter
from backends.llamacpp.constraint_source import source_of
from tests.backends.contract import request

OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}


def source(**outputs: Any) -> Any:
    made = source_of(request("m", structured_outputs=outputs))
    assert made is not None
    return made


def test_a_request_without_a_constraint_has_none():
    assert source_of(request("m")) is None


def test_json_object_is_any_object():
    made = source_of(request("m", response_format={"type": "json_object"}))

    assert made is not None
    assert (made.kind, json.loads(made.text), made.param) == ("json", {"type": "object"}, "response_format")
    assert source(json_object=True).text == made.text


def test_a_json_schema_keeps_the_order_of_its_properties():
    schema = {"type": "object", "properties": {"z": {}, "a": {}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    made = source_of(request("m", response_format=form))

    assert made is not None
    assert list(json.loads(made.text)["properties"]) == ["z", "a"]
    assert made.param == "response_format.json_schema.schema"


def test_a_schema_sets_no_options_of_the_compiler():
    assert json.loads(source(json={"type": "null", "x-guidance": {"lenient": True}}).text) == {"type": "null"}


def test_spacing_follows_the_options():
    assert dict(source(json=OPEN).spacing) == {"item_separator": ", ", "key_separator": ": "}
    assert source(json=OPEN, disable_any_whitespace=True).spacing == ()
    assert source(json=OPEN, whitespace_pattern=" ?").spacing == (("whitespace_pattern", " ?"),)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("^a$", "a"), ("a", "a"), ("^a\\$", "a\\$"), ("a\\\\$", "a\\\\"), ("^$", ""), ("$", ""), ("", "")],
)
def test_anchors_around_a_regex_are_left_out(pattern: str, expected: str):
    assert source(regex=pattern).text == expected


def test_choices_are_literals_whatever_is_in_them():
    made = source(choice=['say "hi"\n', "é\\"])

    assert made.text == 'start: "say \\"hi\\"\\n" | "é\\\\"\n'


@pytest.mark.parametrize(
    "option",
    [{"disable_any_whitespace": True}, {"disable_additional_properties": True}, {"whitespace_pattern": " "}],
    ids=str,
)
def test_an_option_of_json_beside_another_constraint_is_refused_by_name(option: dict[str, Any]):
    with pytest.raises(UnsupportedParameter) as refused:
        source(regex="a", **option)

    assert refused.value.param == f"structured_outputs.{next(iter(option))}"
    assert source(regex="a", disable_fallback=True).text == "a"


def test_a_grammar_is_lark_unless_it_is_written_as_gbnf():
    own = source_of(request("m", grammar='root ::= "b"'))

    assert source(grammar='start: "a"').kind == "lark"
    assert source(grammar='root ::= "a"').kind == "gbnf"
    assert (own.kind, own.text, own.param) == ("gbnf", 'root ::= "b"', "grammar") if own else False


def test_a_structural_tag_is_refused_by_name():
    with pytest.raises(UnsupportedParameter) as refused:
        source_of(request("m", structured_outputs={"structural_tag": "{}", "disable_fallback": True}))

    assert refused.value.param == "structured_outputs.structural_tag"


def test_only_what_a_caller_wrote_as_rules_or_regexes_is_tried_out_first():
    assert source(json=OPEN).is_plain
    assert source(choice=["a"]).is_plain
    assert not source(regex="a").is_plain
    assert not source(grammar='start: "a"').is_plain
    assert not source(json={"type": "string", "pattern": "a"}).is_plain
    assert not source(json={"allOf": [OPEN, OPEN]}).is_plain
    assert not source(json=OPEN, whitespace_pattern="a").is_plain
    assert not source(json={"enum": ["a" * 10_000]}).is_plain
