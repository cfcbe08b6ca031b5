"""Chat templates: what Hugging Face's renderer gives, and what no template may do to the service."""

from __future__ import annotations

import contextlib
import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import TemplateRefused, UnsupportedParameter
from backends.llamacpp.template import ChatTemplate, compile_template
from backends.types import ChatPrompt

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER_AND_ASSISTANT_ONLY = (
    "{% for m in messages %}{% if m.role in ['user', 'assistant', 'system'] %}"
    "[{{ m.role }}] {{ m.content }}\n{% endif %}{% endfor %}"
)
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


def render(source: str, *messages: dict[str, Any], **fields: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(ChatPrompt(messages=list(messages), **fields))


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def test_chatml_is_rendered_to_the_letter():
    text = render(CHATML, {"role": "system", "content": "Be brief."}, user("Hi <b>&\n"), assistant("Yes"))

    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi <b>&\n<|im_end|>\n"
        "<|im_start|>assistant\nYes<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_generation_prompt_can_be_left_out():
    assert render(CHATML, user("Hi"), add_generation_prompt=False).endswith("Hi<|im_end|>\n")


def test_special_tokens_are_the_models_own():
    assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", user("x")) == "<s>x</s>"


def test_blocks_leave_no_line_and_no_indent_behind():
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"

    assert render(source, user("a"), user("b")) == "a\nb\n"


def test_a_templates_own_refusal_is_told_in_its_words():
    source = "{{ raise_exception('Roles must alternate: ' + messages[0].role) }}"

    with pytest.raises(TemplateRefused) as refused:
        render(source, user("x"))

    assert refused.value.message == "Roles must alternate: user"
    assert refused.value.param == "messages"


def test_a_long_refusal_is_cut():
    with pytest.raises(TemplateRefused) as refused:
        render("{{ raise_exception('x' * 100000) }}", user("x"))

    assert len(refused.value.message) == 500


def test_a_refusal_without_words_still_says_something():
    with pytest.raises(TemplateRefused, match="refused by the chat template"):
        render("{{ raise_exception('') }}", user("x"))


def test_strftime_now_gives_todays_date():
    today = datetime.datetime.now().astimezone().strftime("%Y")

    assert render("{{ strftime_now('%Y') }}", user("x")) == today


def test_tojson_escapes_nothing_for_html_and_keeps_characters():
    source = "{{ messages[0] | tojson }}"

    assert render(source, user("<b>'é&😀")) == '{"role": "user", "content": "<b>\'é&😀"}'


def test_tojson_takes_the_options_of_hugging_faces():
    source = "{{ {'b': 1, 'a': [2]} | tojson(separators=(',', ':'), sort_keys=true) }}|{{ [1] | tojson(indent=1) }}"

    assert render(source, user("x")) == '{"a":[2],"b":1}|[\n 1\n]'


def test_the_generation_tag_is_only_its_body():
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", user("x")) == "axb"


def test_loops_can_break_and_continue():
    source = (
        "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}"
        "{% if loop.index == 4 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    )

    assert render(source, *map(user, "abcde")) == "ac"


def test_template_kwargs_reach_the_template():
    source = "{{ 'thinks' if enable_thinking else 'does not' }}"

    assert render(source, user("x"), template_kwargs={"enable_thinking": True}) == "thinks"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "eos_token"])
def test_template_kwargs_cannot_take_the_place_of_the_conversation(name: str):
    source = "{{ bos_token }}{{ eos_token }}{{ messages[0].content }}{{ add_generation_prompt }}"

    assert render(source, user("x"), template_kwargs={name: "forged"}) == "<s></s>xTrue"


def test_template_kwargs_cannot_take_the_place_of_the_tools():
    tools = [{"type": "function", "function": {"name": "real"}}]
    source = "{{ tools[0].function.name }}{# <tool_call> #}"

    assert render(source, user("x"), tools=tools, template_kwargs={"tools": "forged"}) == "real"
    assert render("{{ tools is defined }}", user("x"), template_kwargs={"tools": "forged"}) == "False"


def test_tools_are_undefined_when_there_are_none():
    assert render("{{ tools is defined }}", user("x")) == "False"


def test_a_developer_message_is_a_system_message_where_the_template_knows_none():
    assert "<|im_start|>system\nObey.<|im_end|>" in render(CHATML, {"role": "developer", "content": "Obey."})


def test_a_developer_message_stays_one_where_the_template_knows_it():
    source = (
        "{% for m in messages %}{{ 'D' if m.role == 'developer' else m.role }}: {{ m.content }}{% endfor %}"
    )

    assert render(source, {"role": "developer", "content": "x"}) == "D: x"


def test_a_known_role_that_the_template_leaves_out_all_the_same_is_not_dropped():
    source = "{# no developer here #}" + USER_AND_ASSISTANT_ONLY

    assert "[system] Obey." in render(source, {"role": "developer", "content": "Obey."}, user("x"))


@pytest.mark.parametrize("role", ["tool", "function"])
def test_a_result_whose_role_the_template_leaves_out_becomes_a_user_message(role: str):
    text = render(USER_AND_ASSISTANT_ONLY, user("How warm?"), {"role": role, "content": "21 degrees"})

    assert text == "[user] How warm?\n[user] 21 degrees\n"


def test_a_result_is_not_dropped_because_its_words_stand_elsewhere():
    text = render(USER_AND_ASSISTANT_ONLY, user("Is 4 even?"), {"role": "tool", "content": "4"})

    assert text == "[user] Is 4 even?\n[user] 4\n"


def test_a_result_that_the_template_prints_keeps_its_role():
    text = render(CHATML, user("x"), {"role": "tool", "content": "21"}, add_generation_prompt=False)

    assert text.endswith("<|im_start|>tool\n21<|im_end|>\n")


def test_a_result_that_the_template_escapes_keeps_its_role():
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}"

    assert render(source, {"role": "tool", "content": 'a "b"\n'}) == '<tool>"a \\"b\\"\\n"'


def test_each_message_is_judged_by_itself():
    source = (
        "{% for m in messages %}{% if m.role != 'tool' or m.tool_call_id %}"
        "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
    )
    with_id = {"role": "tool", "content": "1", "tool_call_id": "c1"}

    assert render(source, with_id, {"role": "tool", "content": "2"}) == "[tool]1[user]2"


def test_calls_become_text_where_the_template_knows_none():
    text = render(CHATML, assistant("Let me see.", tool_calls=[CALL]), user("x"))

    assert (
        "<|im_start|>assistant\nLet me see.\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>'
    ) in text


def test_calls_without_words_become_the_whole_message():
    text = render(CHATML, assistant("", tool_calls=[CALL, CALL]), user("x"))

    assert text.count("<tool_call>") == 2
    assert "assistant\n<tool_call>" in text


def test_arguments_are_an_object_where_the_template_knows_calls():
    source = (
        "{% for call in messages[0].tool_calls %}{{ call.function.arguments.city }}"
        "{{ call.function.arguments | tojson }}{% endfor %}"
    )

    assert render(source, assistant("", tool_calls=[CALL])) == 'Köln{"city": "Köln"}'


def test_arguments_that_are_no_json_stay_a_string():
    call = {"function": {"name": "f", "arguments": "{half"}}

    assert render("{{ messages[0].tool_calls[0].function.arguments }}", assistant("", tool_calls=[call])) == (
        "{half"
    )


def test_the_callers_messages_are_not_changed():
    messages = [assistant("", tool_calls=[CALL]), {"role": "developer", "content": "x"}]
    before = json.dumps(messages)
    render(CHATML, *messages)

    assert json.dumps(messages) == before


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_missing_content_is_never_printed_as_a_word(message: dict[str, Any]):
    assert "<|im_start|>assistant\n<|im_end|>" in render(CHATML, message)


def test_a_continued_message_ends_where_its_text_ends():
    text = render(CHATML, user("Count."), assistant("One, two,"), continue_final_message=True)

    assert text == "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne, two,"


@pytest.mark.parametrize("content", ["end", "im", "|", "\n", "e ", ""])
def test_a_continued_message_may_say_what_the_template_says_after_it(content: str):
    text = render(CHATML, assistant(content), continue_final_message=True)

    assert text == "<|im_start|>assistant\n" + content


def test_a_final_message_that_the_template_leaves_out_cannot_be_continued():
    with pytest.raises(UnsupportedParameter) as refused:
        render("{{ messages[0].content }}", user("x"), assistant("y"), continue_final_message=True)

    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__['os'].popen('true') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ '{0.__class__}'.format_map({'0': 1}) }}",
        "{{ messages | attr('__class__') }}",
        "{{ ''['__class__'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages.clear() }}",
        "{% include 'secrets' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends 'base' %}",
        "{{ range(1000000000) | list }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(attack: str):
    text = "nothing"
    try:
        text = render(attack, user("hello"))
    except TemplateRefused as refused:
        text = refused.message

    # What jinja2 hides is undefined and prints as nothing; what it knows to be unsafe is refused.
    assert "<class" not in text
    assert "root:" not in text
    assert "object at 0x" not in text


@pytest.mark.parametrize("attack", ["messages.append(1)", "messages[0].update(a=1)", "messages.pop()"])
def test_a_template_cannot_change_the_messages(attack: str):
    with pytest.raises(TemplateRefused):
        render("{{ " + attack + " }}", user("x"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ 1 // 0 }}",
        "{{ messages[99].content }}",
        "{{ missing.attribute }}",
        "{{ messages + 1 }}",
        "{{ {}['a'].b }}",
        "{{ 'x' | int('y') + [] }}",
        "{{ 2.0 ** 100000 }}",
        "{{ messages | tojson(indent='x') }}{{ missing | tojson }}",
        "{{ range(3) | tojson }}",
        "{{ strftime_now(1) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'a'.join(1) }}",
        "{{ '%d' % 'x' }}",
        "{{ 'x'.encode('nonsense') }}",
        "{{ b.c.d.e }}",
        "{% for m in 5 %}{% endfor %}",
        "{{ raise_exception() }}",
        "{{ '' | first | upper + missing }}",
        "{{ (1).from_bytes('x') }}",
        "{{ '{:d}'.format('x') }}",
        "{{ messages | sort(attribute='missing') | map('fail') | list }}",
    ],
)
def test_a_template_that_trips_over_the_messages_is_the_callers_error(source: str):
    with pytest.raises(TemplateRefused):
        render(source, user("x"))


def test_arguments_nested_too_deep_are_no_crash():
    call = {"function": {"name": "f", "arguments": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"}}

    for source in (CHATML, "{{ messages[0].tool_calls | tojson }}"):
        with pytest.raises(TemplateRefused):
            render(source, assistant("", tool_calls=[call]))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["system", "user", "assistant", "developer", "tool", "function"]),
                "content": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_message_is_lost_or_doubled_whatever_the_roles(messages: list[dict[str, Any]]):
    text = render(USER_AND_ASSISTANT_ONLY, *messages)
    lines = "".join(
        f"[{ {'developer': 'system', 'tool': 'user', 'function': 'user'}.get(m['role'], m['role']) }] "
        f"{m['content']}\n"
        for m in messages
    )

    assert text == lines


@given(st.text(alphabet="{%}- |'\"()[]abmessages.0content+*/~if for endif in else\n", max_size=60))
def test_any_source_compiles_or_warns_and_renders_or_refuses(source: str):
    template = compile_template(source, bos_token="", eos_token="", warn=lambda _: None)
    if template is not None:
        with contextlib.suppress(TemplateRefused):
            assert isinstance(template.render(ChatPrompt(messages=[user("x")])), str)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in messages %}",
        "{{ 1 +",
        "{% nonsense %}",
        "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
        "{{ " + "9" * 10_000 + " }}",
        "{% for a in messages %}" * 30 + "{% endfor %}" * 30,
        "{% generation %}",
    ],
    ids=["open-block", "open-print", "unknown-tag", "deep", "long-number", "many-loops", "open-generation"],
)
def test_a_source_that_does_not_compile_is_no_template_and_a_warning(source: str):
    warnings: list[str] = []
    template = compile_template(source, bos_token="", eos_token="", warn=warnings.append)

    assert template is None
    assert len(warnings) == 1
    assert warnings[0].startswith("the chat template does not compile")


@pytest.mark.parametrize("source", [None, ""])
def test_a_model_without_a_template_has_none_and_no_warning(source: str | None):
    warnings: list[str] = []

    assert compile_template(source, bos_token="", eos_token="", warn=warnings.append) is None
    assert warnings == []
