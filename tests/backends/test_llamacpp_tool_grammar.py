"""What the grammars of tools take and refuse, character by character."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="the engine is not installed")

import llguidance

from backends.llamacpp.tool_grammar import Marks, call_or_answer, may_call, must_call
from backends.parsing.calls import CallReader
from backends.parsing.formats import HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED, PLAIN, CallFormat
from backends.parsing.pieces import CallArguments, CallBegin, CallEnd, joined
from backends.parsing.reasoning import ThoughtMarkers

FORMS = {
    "hermes": HERMES,
    "plain": PLAIN,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral named": MISTRAL_NAMED,
}
THINK = ThoughtMarkers("<think>", "</think>")
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "time"}},
]
OSLO = '{"city": "Oslo"}'
VOCABULARY = llguidance.LLTokenizer("byte")


def call(form: CallFormat, arguments: str = OSLO, name: str = "weather") -> str:
    if form.is_named:
        return f"[TOOL_CALLS]{name}[ARGS]{arguments}"
    key = "parameters" if form is LLAMA3 else "arguments"
    body = f'{{"name": "{name}", "{key}": {arguments}}}'
    if form is LLAMA3:
        return body
    return f"[TOOL_CALLS][{body}]" if form is MISTRAL else f"<tool_call>\n{body}\n</tool_call>"


def takes(grammar: str, text: str, *, answer: dict[str, Any] | None = None) -> bool:
    """Whether the text is a whole answer."""
    if answer is not None:
        json_grammar = json.loads(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(answer)))
        parts = [{"lark_grammar": grammar}, {**json_grammar["grammars"][0], "name": "answer"}]
        grammar = json.dumps({"grammars": parts})
    matcher = llguidance.LLMatcher(VOCABULARY, grammar)
    assert not matcher.is_error(), matcher.get_error()
    encoded = list(text.encode())
    return matcher.try_consume_tokens(encoded) == len(encoded) and matcher.is_accepting()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("several", [True, False])
def test_what_must_be_called_is_called_and_nothing_else(form: CallFormat, several: bool):
    grammar = must_call(TOOLS, Marks(form=form), several=several)

    assert takes(grammar, call(form))
    assert takes(grammar, call(form, "{}", "time"))
    assert not takes(grammar, "It rains.")
    assert not takes(grammar, "")
    assert not takes(grammar, call(form, '{"city": "Paris"}'))
    assert not takes(grammar, call(form, '{"city": "Oslo", "more": 1}'))
    assert not takes(grammar, call(form, '{"zone": 1}', "time"))
    assert not takes(grammar, call(form, "{}", "other"))


def twice(form: CallFormat) -> str:
    if form is LLAMA3:
        return f"{call(form)}; {call(form)}"
    if form is MISTRAL:
        return (
            call(form)
            .replace("]", f", {call(LLAMA3).replace('parameters', 'arguments')}]")
            .replace("[TOOL_CALLS, " + call(LLAMA3).replace("parameters", "arguments") + "]", "[TOOL_CALLS]")
        )
    return call(form) + ("" if form.is_named else "\n") + call(form)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", [must_call, may_call])
def test_only_where_several_are_allowed_another_call_follows(form: CallFormat, make: Any):
    assert takes(make(TOOLS, Marks(form=form), several=True), twice(form))
    assert not takes(make(TOOLS, Marks(form=form), several=False), twice(form))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("several", [True, False])
def test_what_may_be_called_leaves_words_free(form: CallFormat, several: bool):
    grammar = may_call(TOOLS, Marks(form=form), several=several)

    for words in ("", "It rains.", "a {brace} <b> [x] < and </tool", "\n\n", "多 🥊"):
        assert takes(grammar, words)
    assert takes(grammar, call(form))
    if form is not LLAMA3:
        assert takes(grammar, f"Let me see.\n{call(form)}")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_strict_function_is_held_to_its_schema_when_it_is_called_freely(form: CallFormat):
    grammar = may_call(TOOLS, Marks(form=form), several=True)

    assert not takes(grammar, call(form, '{"city": "Paris"}'))
    assert takes(grammar, call(form, '{"zone": [1, {"a": null}]}', "time"))
    assert not takes(grammar, call(form, "{}", "other"))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_thought_may_come_first(form: CallFormat):
    thinks = must_call(TOOLS, Marks(form=form, thoughts=THINK), several=False)
    is_thinking = must_call(TOOLS, Marks(form=form, thoughts=THINK, begins_inside=True), several=False)

    assert takes(thinks, f"<think>\nHm <tool_call>\n</think>\n\n{call(form)}")
    assert takes(thinks, call(form))
    assert takes(is_thinking, f"Hm\n</think>\n\n{call(form)}")
    assert not takes(is_thinking, call(form))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_beside_calls_stands_the_answer_that_was_asked_for(form: CallFormat):
    grammar = call_or_answer(TOOLS, Marks(form=form, thoughts=THINK), several=True)

    assert takes(grammar, call(form), answer=CITY)
    assert takes(grammar, f"<think>Hm</think>\n{OSLO}", answer=CITY)
    assert not takes(grammar, "It rains.", answer=CITY)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_the_grammar_takes_is_what_is_read(form: CallFormat):
    reader = CallReader(form, {"weather", "time"})

    pieces = joined([*reader.feed(call(form)), *reader.finish()])

    assert pieces == [CallBegin("weather"), CallArguments(OSLO), CallEnd()]
