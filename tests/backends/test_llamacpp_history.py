"""Tools, calls and results in the shapes that templates ask for."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import TemplateRefused
from backends.llamacpp.template import ChatTemplate
from backends.types import ChatPrompt

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
UNKNOWN_FORM = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
MISTRAL = (
    "{{ tools }}{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}({{ c.id }}){% endfor %}"
    "{% elif m.role == 'tool' %}<{{ m.tool_call_id }}>{{ m.content }}{% endif %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "weather", "description": "Rain?", "parameters": {"a": 1}}}
USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


def render(source: str, *messages: dict[str, Any], **fields: Any) -> str:
    template = ChatTemplate(source, bos_token="", eos_token="")
    return template.render(ChatPrompt(messages=list(messages), **fields))


def call(arguments: str = '{"a": 1}', **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "arguments": arguments}, **fields}


def assistant(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(**fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "yes", **fields}


# -- tools ------------------------------------------------------------------------------------------------------


def test_a_template_without_tools_has_them_in_the_system_turn():
    text = render(CHATML, SYSTEM, USER, tools=[TOOL])

    system, user = text.split("<|user|>")
    assert system.startswith("<|system|>Be brief.\n\n")
    assert '{"name": "weather", "description": "Rain?", "parameters": {"a": 1}}' in system
    assert '<tool_call>\n{"name"' in system
    assert user == "Hi\n<|assistant|>"


def test_where_nothing_is_said_yet_they_are_the_system_turn():
    assert render(CHATML, USER, tools=[TOOL]).startswith("<|system|>You can call")


def test_a_developers_message_is_the_system_turn():
    text = render(CHATML, {"role": "developer", "content": "Be brief."}, USER, tools=[TOOL])

    assert text.startswith("<|system|>Be brief.\n\nYou can call")


def test_a_template_that_takes_no_system_turn_has_them_before_the_users_words():
    text = render(NO_SYSTEM, USER, tools=[TOOL])

    assert text.startswith("<|user|>You can call")
    assert text.endswith("\n\nHi\n<|assistant|>")


def test_a_refusal_that_has_another_reason_stays_one():
    with pytest.raises(TemplateRefused, match="never"):
        render("{{ raise_exception('never') }}", USER, tools=[TOOL])


def test_a_template_that_asks_for_calls_of_an_unknown_form_is_not_given_the_tools():
    text = render(UNKNOWN_FORM, USER, tools=[TOOL])

    assert text.startswith("<|system|>You can call")


def test_what_is_described_may_be_continued():
    text = render(
        CHATML, USER, {"role": "assistant", "content": "Well,"}, tools=[TOOL], continue_final_message=True
    )

    assert text.endswith("<|assistant|>Well,")


# -- history ----------------------------------------------------------------------------------------------------


def test_a_model_that_is_told_how_to_call_sees_calls_of_that_form():
    source = CHATML + "{# tool_calls #}"
    text = render(source, USER, assistant(call()), result(), tools=[TOOL])

    assert '<|assistant|><tool_call>\n{"name": "weather", "arguments": {"a": 1}}\n</tool_call>' in text


@pytest.mark.parametrize(
    ("printed", "wanted"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": 1}'),
        ("{{ c.function.arguments }}", '{"a": 1}'),
        ("{{ '' + c.function.arguments }}", '{"a": 1}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{% if c.function.arguments is string %}S{% else %}O{% endif %}", "O"),
    ],
)
def test_arguments_have_the_shape_that_the_template_asks_for(printed: str, wanted: str):
    source = (
        "{{ tools }}<tool_call>{% for m in messages %}{% for c in m.tool_calls or [] %}"
        + printed
        + "{% endfor %}{% endfor %}"
    )

    assert render(source, USER, assistant(call())).endswith(f"<tool_call>{wanted}")


def test_ids_are_shortened_for_templates_that_refuse_others():
    text = render(
        MISTRAL, USER, assistant(call(id="call_0123456789")), result(tool_call_id="call_0123456789")
    )

    called, _, answered = text.partition("[TOOL_CALLS]")[2].partition(")")
    assert len(called) == 10
    assert answered == f"<{called[1:]}>yes"


def test_ids_that_fit_stay():
    assert "(a1b2c3d4e)" in render(MISTRAL, USER, assistant(call(id="a1b2c3d4e")))


def test_calls_without_ids_get_some_and_results_follow_in_order():
    text = render(MISTRAL, USER, assistant(call(), call()), result(), result())

    first, second = (
        part.rstrip(")") for part in text.partition("[TOOL_CALLS](")[2].partition("<")[0].split("(")
    )
    assert first != second
    assert text.endswith(f"<{first}>yes<{second}>yes")
