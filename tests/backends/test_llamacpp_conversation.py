"""What a chat request asks of a model: its template's variables, what the answer may look like, how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from backends.errors import InvalidGrammar, UnsupportedParameter
from backends.llamacpp.conversation import Manner, manner_of, told
from backends.llamacpp.template import ChatTemplate
from backends.parsing.reasoning import ThoughtMarkers
from backends.types import ChatPrompt, GenerationRequest, Prompt, SamplingParams, TextPrompt

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
NAMED = {"type": "function", "function": {"name": "look"}}
HERMES = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}<tool_call>"
THINKS = "{{ messages[0].content }}{% if enable_thinking is defined %}<think>{% endif %}"


class Vocabulary:
    """One token per character; those of `control` are tokens of their own and have no text."""

    def __init__(self, *control: str) -> None:
        self._control = control

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        del add_special, parse_special
        return [1_000_000 + self._control.index(text)] if text in self._control else [ord(c) for c in text]

    def piece(self, token: int) -> bytes:
        return b"" if token >= 1_000_000 else chr(token).encode()

    def printable_piece(self, token: int) -> bytes:
        return self._control[token - 1_000_000].encode() if token >= 1_000_000 else chr(token).encode()


def request(source: str, *, messages: Sequence[dict[str, Any]] = (), **fields: Any) -> GenerationRequest:
    tools, kwargs = fields.pop("tools", None), fields.pop("template_kwargs", {})
    prompt: Prompt = ChatPrompt(
        messages=list(messages) or [{"role": "user", "content": "Hi"}],
        tools=tools,
        template_kwargs=kwargs,
        continue_final_message=fields.pop("continues", False),
    )
    del source
    fields.setdefault("sampling", SamplingParams())
    return GenerationRequest(request_id="r", model="m", prompts=(prompt,), **fields)


def manner(source: str, *, tail: str = "", control: tuple[str, ...] = (), **fields: Any) -> Manner | None:
    template = ChatTemplate(source, bos_token="", eos_token="")
    asked = told(request(source, **fields), template)
    vocabulary: Any = Vocabulary(*control)
    tokens = vocabulary.tokenize(tail, add_special=False, parse_special=True)
    return manner_of(asked, asked.prompts[0], tokens, template, vocabulary)


def lark(source: str = HERMES, **fields: Any) -> str | None:
    made = manner(source, **{"tools": [TOOL], **fields})
    assert made is not None
    return made.source.text if made.source is not None else None


# -- tools ------------------------------------------------------------------------------------------------------


def test_without_tools_and_thoughts_an_answer_is_text():
    assert manner(HERMES) is None


def test_a_text_completion_is_text():
    template = ChatTemplate(THINKS, bos_token="", eos_token="")
    any_model: Any = Vocabulary()

    assert manner_of(request(THINKS), TextPrompt(text="<think>"), [60], template, any_model) is None


def test_tools_that_must_not_be_called_are_not_told():
    assert manner(HERMES, tools=[TOOL], tool_choice="none") is None


def test_auto_is_what_the_model_writes():
    assert lark(tool_choice="auto") is None
    assert lark() is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": NAMED},
        {"parallel_tool_calls": False},
        {"tools": [STRICT]},
    ],
)
def test_what_must_hold_is_a_constraint(fields: dict[str, Any]):
    text = lark(**fields)

    assert text is not None
    assert '\\"look\\"' in text


def test_only_the_named_tool_may_be_called():
    other = {"type": "function", "function": {"name": "leave"}}
    text = lark(tools=[TOOL, other], tool_choice=NAMED)

    assert text is not None
    assert "leave" not in text


@pytest.mark.parametrize(
    ("source", "several", "repeats"),
    [
        (HERMES, None, True),
        (HERMES, False, False),
        ("{{ messages }}", None, False),
        ("{{ messages }}", True, True),
    ],
)
def test_required_is_one_call_where_the_model_was_made_for_none(
    source: str, several: bool | None, repeats: bool
):
    text = lark(source, tool_choice="required", parallel_tool_calls=several) or ""

    assert (")*" in text.splitlines()[0]) == repeats


OWN: list[tuple[dict[str, Any], str]] = [
    ({"sampling": SamplingParams(grammar='root ::= "a"')}, "grammar"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("fields", "param"), OWN)
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_constraint_of_the_callers_beside_a_call_that_must_come_is_refused_by_name(
    fields: dict[str, Any], param: str, choice: Any
):
    with pytest.raises(UnsupportedParameter) as refused:
        lark(tool_choice=choice, **fields)

    assert refused.value.param == param


@pytest.mark.parametrize(("fields", "param"), OWN)
def test_a_constraint_of_the_callers_beside_calls_that_may_come_is_the_answers(
    fields: dict[str, Any], param: str
):
    made = manner(HERMES, tools=[TOOL], **fields)

    assert param
    assert made is not None
    assert made.source is None
    assert "| @answer" in made.around


def test_arguments_that_are_no_object_cannot_be_held_to_their_schema():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}

    with pytest.raises(InvalidGrammar) as refused:
        lark(tools=[tool], tool_choice="required")

    assert refused.value.param == "tools[0].function.parameters"


def test_marks_that_are_control_tokens_are_seen_and_named_by_number():
    made = manner(
        "{{ tools }}[TOOL_CALLS][ARGS]",
        tools=[TOOL],
        tool_choice="required",
        control=("[TOOL_CALLS]", "[ARGS]"),
    )

    assert made is not None
    assert made.shown == {1_000_000: b"[TOOL_CALLS]", 1_000_001: b"[ARGS]"}
    assert made.source is not None
    assert "<[1000000]>" in made.source.text


# -- thoughts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "thoughts", "begins_inside"),
    [
        ("assistant\n", True, False),
        ("assistant\n<think>\n", True, True),
        ("assistant\n<think>\n\n</think>\n\n", False, False),
    ],
)
def test_the_prompts_end_tells_where_the_answer_begins(tail: str, thoughts: bool, begins_inside: bool):
    made = manner(THINKS, tail=tail)

    assert (made is not None) == thoughts
    if made is not None:
        assert made.grammar.begins_inside == begins_inside
        assert made.grammar.thoughts == ThoughtMarkers("<think>", "</think>")


@pytest.mark.parametrize(
    ("content", "thoughts", "begins_inside"),
    [("<think>Hm", True, True), ("<think>Hm</think>So", False, False), ("", True, False)],
)
def test_a_final_message_that_goes_on_may_be_within_a_thought(
    content: str, thoughts: bool, begins_inside: bool
):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
    made = manner(THINKS, messages=messages, continues=True)

    assert (made is not None) == thoughts
    assert made is None or made.grammar.begins_inside == begins_inside


@pytest.mark.parametrize(
    ("source", "effort", "kwargs", "wanted"),
    [
        ("{{ enable_thinking }}", "none", {}, {"enable_thinking": False}),
        ("{{ enable_thinking }}", "high", {}, {"enable_thinking": True}),
        ("{{ thinking }}", "none", {}, {"thinking": False}),
        ("{{ reasoning_effort }}", "low", {}, {"reasoning_effort": "low"}),
        ("{{ enable_thinking }}", "high", {"enable_thinking": False}, {"enable_thinking": False}),
        ("{{ enable_thinking }}", None, {"enable_thinking": True}, {"enable_thinking": True}),
    ],
)
def test_an_effort_reaches_the_template_in_its_own_words(
    source: str, effort: str | None, kwargs: dict[str, Any], wanted: dict[str, Any]
):
    template = ChatTemplate(source, bos_token="", eos_token="")
    asked = told(request(source, reasoning_effort=effort, template_kwargs=kwargs), template)

    (prompt,) = asked.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_kwargs == wanted


def test_an_effort_that_the_template_knows_nothing_of_is_refused_by_name():
    with pytest.raises(UnsupportedParameter) as refused:
        told(request("", reasoning_effort="low"), ChatTemplate("{{ messages }}", bos_token="", eos_token=""))

    assert refused.value.param == "reasoning_effort"
