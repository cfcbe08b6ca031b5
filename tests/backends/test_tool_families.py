"""Each family of templates from the tools to the call: told, written in a history, read back. Makes the table of
docs/tools.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backends.llamacpp.template import ChatTemplate
from backends.parsing.answer import Grammar, parse
from backends.parsing.pieces import CallArguments, CallBegin, CallEnd, joined
from backends.types import ChatPrompt

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Rain or sun", "parameters": {}}}
]
CALL = {
    "id": "call_0123",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Rain in Oslo?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "yes", "tool_call_id": "call_0123"},
]


class Family(NamedTuple):
    """`template`: cut down to what tells the family. `history`: what TALK's call becomes in it."""

    models: str
    template: str
    told: str
    history: str


_TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"

FAMILIES = {
    "hermes": Family(
        "Qwen 2.5, Qwen 3, QwQ, Hermes 2 Pro and 3",
        "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
        + _TURNS
        + '{% for call in m.tool_calls or [] %}<tool_call>\n{{ \'{"name": "\' + call.function.name }}'
        '", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endfor %}',
        "by the template",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    ),
    "llama3": Family(
        "Llama 3.1, 3.2, 3.3",
        "{% if tools is not none and tools is defined %}Environment: ipython {{ tools | tojson }}{% endif %}"
        + _TURNS
        + '{% for call in m.tool_calls or [] %}{{ \'{"name": "\' + call.function.name }}'
        '", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}{% endfor %}',
        "by the template",
        '{"name": "weather", "parameters": {"city": "Oslo"}}',
    ),
    "mistral": Family(
        "Mistral 7B v0.3, Nemo, Small; Ministral and later in the form with `[ARGS]`",
        "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}"
        + _TURNS
        + "{% if m.tool_calls %}[TOOL_CALLS]["
        "{% for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('ids have nine') }}{% endif %}"
        '{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}{% endfor %}]{% endif %}{% endfor %}',
        "by the template",
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, "id": "',
    ),
    "plain": Family(
        "SmolLM2, Phi-3, Gemma and all others",
        _TURNS + "{% endfor %}",
        "in the system turn, by us",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    ),
}

WRITTEN = {
    "hermes": '<tool_call>{"name": …, "arguments": {…}}</tool_call>',
    "llama3": '{"name": …, "parameters": {…}}, or the same after <|python_tag|>',
    "mistral": '[TOOL_CALLS][{"name": …, "arguments": {…}}], or [TOOL_CALLS]name[ARGS]{…}',
    "plain": "as hermes, with or without the tags",
}


def template_of(family: str) -> ChatTemplate:
    return ChatTemplate(FAMILIES[family].template, bos_token="", eos_token="")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_template_tells_the_family(family: str):
    assert template_of(family).call_format.family == family


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_told_of_the_tools(family: str):
    text = template_of(family).render(ChatPrompt(messages=TALK[:1], tools=TOOLS))

    assert "Rain or sun" in text
    assert ("<tool_call>" in text) == (family == "plain")


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_and_results_of_the_history_have_the_familys_form(family: str):
    text = template_of(family).render(ChatPrompt(messages=TALK, tools=TOOLS))

    assert FAMILIES[family].history in text
    assert text.endswith("[tool]yes")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_stands_in_the_history_is_what_is_read(family: str):
    template = template_of(family)
    text = template.render(ChatPrompt(messages=TALK[:2], tools=TOOLS)).rpartition("[assistant]")[2]

    pieces = parse(text, Grammar(calls=template.call_format, names={"weather"}))

    assert joined(pieces) == [CallBegin("weather"), CallArguments('{"city": "Oslo"}'), CallEnd()]


def test_the_document_has_this_table():
    rows = ["| family | models | tools are told | a call |", "|---|---|---|---|"]
    rows += [
        f"| {name} | {family.models} | {family.told} | {_cell(WRITTEN[name])} |"
        for name, family in FAMILIES.items()
    ]
    document = Path("docs/tools.md").read_text(encoding="utf-8")

    assert "\n".join(("<!-- families -->", *rows, "<!-- /families -->")) in document


def _cell(text: str) -> str:
    return ", or ".join(f"`{part}`" if part[0] in "<{[" else part for part in text.split(", or ")).replace(
        "|", "\\|"
    )
