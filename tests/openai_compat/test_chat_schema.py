"""The fields of a chat request: what passes, what does not, and what the 422 says."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_compat.errors import ValidationFailed
from openai_compat.schemas.chat import CHAT, ChatRequest, read_chat
from openai_compat.schemas.fields import Integer, Number
from openai_compat.schemas.table import ROUTING, Policy

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

BAD_PARAMETERS = {"type": "function", "function": {"name": "a", "parameters": 5}}
OTHER_TOOL = {"type": "function", "function": {"name": "other"}}
NO_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x"}}


def read(*, strict: bool = False, **fields: Any) -> ChatRequest:
    return read_chat({"model": "tiny", "messages": [USER], **fields}, strict=strict)


def problem(*, strict: bool = False, **fields: Any) -> dict[str, Any]:
    """The first entry of the 422, with its param."""
    with pytest.raises(ValidationFailed) as caught:
        read(strict=strict, **fields)
    return {**caught.value.entries[0], "param": caught.value.param}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 0),
        ("top_p", 1),
        ("frequency_penalty", -2),
        ("presence_penalty", 2.0),
        ("max_tokens", 1),
        ("max_tokens", 1_000_000),
        ("max_tokens", 5.0),
        ("seed", -(2**63)),
        ("seed", 2**63 - 1),
        ("min_p", 1),
        ("typical_p", 0.5),
        ("repetition_penalty", 0.01),
        ("stop_token_ids", [0, 2**31 - 1]),
        ("ignore_eos", True),
        ("grammar", "root ::= [a-z]"),
        ("logit_bias", {"0": -100, "5": 100}),
    ],
)
def test_a_value_inside_its_range_reaches_the_sampling(field: str, value: Any) -> None:
    sampling = read(**{field: value}).sampling

    expected = {int(k): v for k, v in value.items()} if field == "logit_bias" else value
    assert sampling == {field: expected}


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("temperature", 2.1, "less_than_equal"),
        ("temperature", -0.1, "greater_than_equal"),
        ("temperature", float("nan"), "less_than_equal"),
        ("temperature", 10**400, "less_than_equal"),
        ("temperature", "0.5", "float_type"),
        ("temperature", True, "float_type"),
        ("top_p", 1.1, "less_than_equal"),
        ("top_p", -0.1, "greater_than_equal"),
        ("frequency_penalty", 2.01, "less_than_equal"),
        ("presence_penalty", -2.01, "greater_than_equal"),
        ("max_tokens", 0, "greater_than_equal"),
        ("max_tokens", -1, "greater_than_equal"),
        ("max_tokens", 1_000_001, "less_than_equal"),
        ("max_tokens", 1.5, "int_from_float"),
        ("max_tokens", "5", "int_type"),
        ("max_tokens", True, "int_type"),
        ("max_completion_tokens", 0, "greater_than_equal"),
        ("n", 0, "greater_than_equal"),
        ("n", 17, "less_than_equal"),
        ("seed", 2**63, "less_than_equal"),
        ("seed", 1e18, "int_from_float"),
        ("top_k", -2, "greater_than_equal"),
        ("min_p", 1.1, "less_than_equal"),
        ("repetition_penalty", 0, "greater_than"),
        ("stream", 1, "bool_type"),
        ("stream", "true", "bool_type"),
        ("model", "", "string_too_short"),
        ("model", 5, "string_type"),
        ("backend", 5, "string_type"),
        ("stop", "", "string_too_short"),
        ("stop", 5, "string_type"),
        ("stop", ["x"] * 17, "too_long"),
        ("stop_token_ids", 5, "list_type"),
        ("grammar", "x" * 65_537, "string_too_long"),
        ("grammar", "", "string_too_short"),
        ("logit_bias", [], "dict_type"),
        ("metadata", "x", "dict_type"),
        ("chat_template_kwargs", [], "dict_type"),
        ("messages", "Hi", "list_type"),
        ("messages", {}, "list_type"),
        ("messages", [], "too_short"),
        ("messages", [USER] * 1001, "too_long"),
    ],
)
def test_a_value_outside_its_range_is_named(field: str, value: Any, kind: str) -> None:
    found = problem(**{field: value})

    assert found["type"] == kind
    assert found["loc"] == ["body", field]
    assert found["param"] == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["x", ""]}, "stop.1"),
        ({"stop": [5]}, "stop.0"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids.1"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"99999999999": 1}}, "logit_bias.99999999999"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"logit_bias": {"5": True}}, "logit_bias.5"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias.5"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {}, "stream": False}, "stream_options"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 50, "max_completion_tokens": 5}, "min_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tools": "x"}, "tools"),
        ({"tools": []}, "tools"),
        ({"tools": [5]}, "tools.0"),
        ({"tools": [{"type": "x"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [BAD_PARAMETERS]}, "tools.0.function.parameters"),
        ({"tools": [TOOL, TOOL]}, "tools.1.function.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "maybe", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": OTHER_TOOL, "tools": [TOOL]}, "tool_choice"),
        ({"functions": [{"name": ""}]}, "functions.0.name"),
        ({"function_call": "auto"}, "function_call"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": NO_SCHEMA}, "response_format.json_schema.schema"),
    ],
)  # fmt: skip
def test_a_problem_inside_a_field_is_named_by_its_dotted_path(fields: dict[str, Any], param: str) -> None:
    assert problem(**fields)["param"] == param


@pytest.mark.parametrize("field", ["messages", "model"])
@pytest.mark.parametrize("body", [{}, {"messages": None, "model": None}])
def test_messages_and_model_are_required(field: str, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed) as caught:
        read_chat(body)

    missing = [entry["loc"] for entry in caught.value.entries if entry["type"] == "missing"]
    assert ["body", field] in missing


OPTIONAL = [name for name, field in CHAT.items() if not field.required]


@pytest.mark.parametrize("field", [*OPTIONAL, "never_heard_of"])
def test_null_equals_absent_for_every_optional_field(field: str) -> None:
    assert read(strict=True, **{field: None}) == read()


@pytest.mark.parametrize("field", ROUTING)
@pytest.mark.parametrize("strict", [False, True])
def test_a_routing_field_is_refused_and_its_value_is_not_quoted(field: str, strict: bool) -> None:
    found = problem(strict=strict, **{field: "sk-secret"})

    assert found["param"] == field
    assert found["input"] is None


def test_an_unknown_field_is_ignored_by_name() -> None:
    assert read(wings=2, temperature=1).ignored == ("wings",)


def test_an_unknown_field_is_a_problem_when_strict() -> None:
    found = problem(strict=True, wings=2)

    assert (found["type"], found["param"]) == ("extra_forbidden", "wings")


HARMLESS = {
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "parallel_tool_calls": True,
}


def test_a_harmless_field_is_ignored_by_name_even_when_strict() -> None:
    assert set(read(strict=True, **HARMLESS).ignored) == set(HARMLESS)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"modalities": ["text"]}, ()),
        ({"modalities": ["text", "audio"]}, ("modalities",)),
        ({"audio": {"voice": "x"}}, ("audio",)),
        ({"prediction": {"type": "content"}}, ("prediction",)),
        ({"web_search_options": {}}, ("web_search_options",)),
        ({"guided_json": {}}, ("guided_json",)),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_unless_it_asks_for_nothing(
    fields: dict[str, Any], refused: tuple[str, ...]
) -> None:
    assert read(**fields).refused == refused


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"tools": [TOOL]}, {"tools": "tools"}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": "tools", "tool_choice": "tools"}),
        ({"tools": [TOOL], "tool_choice": "none"}, {}),
        ({"functions": [{"name": "f"}]}, {"functions": "tools"}),
        ({"functions": [{"name": "f"}], "function_call": "none"}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"response_format": "structured_outputs"}),
        ({"structured_outputs": {"json": {}}}, {"structured_outputs": "structured_outputs"}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "reasoning_effort"}),
    ],
)
def test_a_field_says_what_its_backend_must_have_unless_it_asks_for_nothing(
    fields: dict[str, Any], needed: dict[str, str]
) -> None:
    assert read(**fields).needed == needed


def test_functions_become_tools_and_their_choice_a_tool_choice() -> None:
    old = read(functions=[{"name": "f", "strict": None}], function_call={"name": "f"})
    new = read(
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice={"type": "function", "function": {"name": "f"}},
    )

    assert (old.tools, old.tool_choice) == (new.tools, new.tool_choice)
    assert old.tools == [{"type": "function", "function": {"name": "f"}}]


def test_both_forms_of_tools_at_once_are_a_problem() -> None:
    assert problem(tools=[TOOL], functions=[{"name": "g"}])["param"] == "functions"


def test_parallel_tool_calls_belongs_to_tools() -> None:
    asked = read(tools=[TOOL], parallel_tool_calls=False)

    assert (asked.parallel_tool_calls, asked.ignored) == (False, ())


STRUCTURED = {
    "json": {"type": "object"},
    "regex": "[a-z]+",
    "choice": ["a", "b"],
    "grammar": "root ::= 'a'",
    "json_object": True,
    "structural_tag": '{"triggers": ["<f"]}',
}


@pytest.mark.parametrize("member", STRUCTURED)
def test_structured_outputs_take_one_constraint_beside_options(member: str) -> None:
    given = {member: STRUCTURED[member], "disable_any_whitespace": True, "whitespace_pattern": None}

    asked = read(structured_outputs=given)

    assert asked.structured_outputs == {member: STRUCTURED[member], "disable_any_whitespace": True}


def test_a_schema_given_as_text_becomes_an_object() -> None:
    asked = read(structured_outputs={"json": '{"type": "object"}'})

    assert asked.structured_outputs == {"json": {"type": "object"}}


def test_a_structural_tag_given_as_an_object_becomes_text() -> None:
    asked = read(structured_outputs={"structural_tag": {"triggers": ["<f"]}})

    assert asked.structured_outputs == {"structural_tag": '{"triggers":["<f"]}'}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, ""),
        ({"json": None}, ""),
        ({"json": {}, "regex": "a"}, ""),
        ({"json": "{"}, ".json"),
        ({"json": [1]}, ".json"),
        ({"json": True}, ".json"),
        ({"regex": ""}, ".regex"),
        ({"regex": 5}, ".regex"),
        ({"choice": []}, ".choice"),
        ({"choice": "ab"}, ".choice"),
        ({"choice": ["a", ""]}, ".choice.1"),
        ({"choice": ["a"] * 1025}, ".choice"),
        ({"json_object": False}, ".json_object"),
        ({"json": {}, "backend": "xgrammar"}, ".backend"),
        ({"json": {}, "disable_any_whitespace": 1}, ".disable_any_whitespace"),
        ([], ""),
    ],
)
def test_structured_outputs_of_another_shape_are_a_problem(given: Any, param: str) -> None:
    assert problem(structured_outputs=given)["param"] == f"structured_outputs{param}"


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "root ::= [a]", "response_format": {"type": "json_object"}},
        {"grammar": "root ::= [a]", "structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    ],
)
def test_two_constraints_at_once_are_a_problem(fields: dict[str, Any]) -> None:
    assert "Only one of" in problem(**fields)["msg"]


def test_a_constraint_beside_plain_text_is_none() -> None:
    assert read(grammar="root ::= [a]", response_format={"type": "text"}).response_format is None


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert read(max_tokens=5, max_completion_tokens=7).sampling == {"max_tokens": 7}


def test_top_k_of_minus_one_is_off() -> None:
    assert read(top_k=-1).sampling == {"top_k": 0}


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_say_how_many_alternatives(fields: dict[str, Any], asked: int | None) -> None:
    assert read(**fields).sampling.get("logprobs") == asked


def test_stop_becomes_a_tuple() -> None:
    assert read(stop="x").sampling == {"stop": ("x",)}
    assert read(stop=["x", "y"]).sampling == {"stop": ("x", "y")}
    assert read(stop=[]).sampling == {"stop": ()}


def test_continuing_the_final_message_adds_no_prompt() -> None:
    asked = read(messages=[USER, {"role": "assistant", "content": "He"}], continue_final_message=True)

    assert asked.continue_final_message
    assert not asked.add_generation_prompt


def test_continuing_and_beginning_a_turn_exclude_each_other() -> None:
    messages = [USER, {"role": "assistant", "content": "He"}]

    assert problem(messages=messages, continue_final_message=True, add_generation_prompt=True)["param"]


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ValidationFailed) as caught:
        read(temperature=3, n=0, stop=5)

    assert [entry["loc"][1] for entry in caught.value.entries] == ["temperature", "n", "stop"]


@given(st.data())
def test_a_number_is_accepted_exactly_inside_its_documented_range(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([n for n, f in CHAT.items() if isinstance(f.kind, Number)]))
    kind = CHAT[name].kind
    assert isinstance(kind, Number)
    schema = kind.schema
    edges = [schema[edge] for edge in ("minimum", "maximum", "exclusiveMinimum") if edge in schema]
    step = 1 if isinstance(kind, Integer) else 0.001
    value = data.draw(st.sampled_from([edge + delta for edge in edges for delta in (-step, 0, step)]))
    inside = schema.get("minimum", value) <= value <= schema["maximum"] and value > schema.get(
        "exclusiveMinimum", value - 1
    )

    fields = {"logprobs": True, name: value}

    assert accepts(fields) == inside


def accepts(fields: dict[str, Any]) -> bool:
    try:
        read(**fields)
    except ValidationFailed:
        return False
    return True


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(sorted(CHAT)), VALUES, max_size=6))
def test_no_value_makes_the_check_fail_in_another_way(fields: dict[str, Any]) -> None:
    with suppress(ValidationFailed):
        read_chat({"model": "tiny", "messages": [USER], **fields})


def test_no_routing_field_is_documented_as_accepted() -> None:
    assert {name for name, field in CHAT.items() if field.policy is Policy.ROUTING} == set(ROUTING)
