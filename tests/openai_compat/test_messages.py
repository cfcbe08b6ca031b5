"""Messages: which conversations are taken, and what the template gets of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import UnsupportedParameter
from backends.types import Feature
from openai_compat.errors import ValidationFailed
from openai_compat.schemas.chat import read_chat
from openai_compat.serving.gateway import Target
from openai_compat.serving.messages import idle_detail, normalise
from tests.openai_compat.pictures import shown
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.wire import card

USER = {"role": "user", "content": "Hi"}


def check(*messages: Any) -> list[dict[str, Any]]:
    return read_chat({"model": "tiny", "messages": list(messages)}).messages


def entries(*messages: Any) -> list[dict[str, Any]]:
    with pytest.raises(ValidationFailed) as caught:
        check(*messages)
    return caught.value.entries


def target(kind: str = "fake", *, vision: bool = True, sees: bool = True) -> Target:
    """`vision`: the card says so; `sees`: the backend takes pictures."""
    capabilities = ("chat", "vision") if vision else ("chat", "completion")
    features: frozenset[Feature] = frozenset({"vision"}) if sees else frozenset()
    return Target(card(capabilities=capabilities), kind, ScriptedBackend(kind=kind, features=features))


def normal(*messages: Any, vision: bool = False) -> list[dict[str, Any]]:
    return normalise(check(*messages), target(vision=vision))


def call(arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        **fields,
    }


@pytest.mark.parametrize(
    "content",
    [
        "",
        [],
        [{"type": "text", "text": ""}],
        [{"type": "text", "text": ""}] * 2,
        [{"type": "text", "text": ""}, {"type": "refusal", "refusal": ""}],
    ],
)
def test_an_empty_user_message_is_refused_in_these_words(content: Any) -> None:
    found = entries(USER, {"role": "user", "content": content})

    assert found == [
        {
            "type": "value_error",
            "loc": ["body", "messages", 1, "content"],
            "msg": "Message at index 1 with role 'user' cannot have empty content",
            "input": content,
        }
    ]


def test_blanks_are_text() -> None:
    assert normal({"role": "user", "content": " "}) == [{"role": "user", "content": " "}]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_a_role_is_kept(role: str) -> None:
    assert normal({"role": role, "content": "x"}) == [{"role": role, "content": "x"}]


def test_the_function_role_becomes_tool() -> None:
    assert normal({"role": "function", "name": "f", "content": "5"}) == [
        {"role": "tool", "name": "f", "content": "5"}
    ]


@pytest.mark.parametrize(
    ("message", "loc"),
    [
        (5, []),
        ("Hi", []),
        (None, []),
        ({}, ["role"]),
        ({"content": "x"}, ["role"]),
        ({"role": "robot", "content": "x"}, ["role"]),
        ({"role": 5, "content": "x"}, ["role"]),
        ({"role": ["user"], "content": "x"}, ["role"]),
        ({"role": "user"}, ["content"]),
        ({"role": "user", "content": None}, ["content"]),
        ({"role": "system", "content": None}, ["content"]),
        ({"role": "tool", "content": None}, ["content"]),
        ({"role": "user", "content": 5}, ["content"]),
        ({"role": "user", "content": {"type": "text"}}, ["content"]),
        ({"role": "user", "content": ["x"]}, ["content", 0]),
        ({"role": "user", "content": [{"text": "x"}]}, ["content", 0, "type"]),
        ({"role": "user", "content": [{"type": "song"}]}, ["content", 0, "type"]),
        ({"role": "user", "content": [{"type": ["text"]}]}, ["content", 0, "type"]),
        ({"role": "user", "content": [{"type": "text"}]}, ["content", 0, "text"]),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, ["content", 0, "text"]),
        ({"role": "user", "content": [{"type": "image_url"}]}, ["content", 0, "image_url"]),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            ["content", 0, "image_url", "url"],
        ),
        ({"role": "user", "content": "x", "name": 5}, ["name"]),
        ({"role": "assistant", "tool_calls": 5}, ["tool_calls"]),
        ({"role": "assistant", "tool_calls": [5]}, ["tool_calls", 0]),
        ({"role": "assistant", "tool_calls": [{}]}, ["tool_calls", 0, "function"]),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, ["tool_calls", 0, "function", "name"]),
        ({"role": "assistant", "function_call": {"arguments": "{}"}}, ["function_call", "name"]),
        (call("{"), ["tool_calls", 0, "function", "arguments"]),
        (call("[1]"), ["tool_calls", 0, "function", "arguments"]),
        (call({"a": 1}), ["tool_calls", 0, "function", "arguments"]),
        (call("[" * 5000), ["tool_calls", 0, "function", "arguments"]),
    ],
)  # fmt: skip
def test_what_is_no_message_is_named(message: Any, loc: list[Any]) -> None:
    assert entries(USER, message)[0]["loc"] == ["body", "messages", 1, *loc]


def test_a_thousand_messages_pass() -> None:
    assert len(check(*[USER] * 1000)) == 1000


def test_text_parts_are_joined_by_a_newline() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert normal({"role": "user", "content": parts}) == [{"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_an_assistant_may_say_nothing(content: dict[str, Any]) -> None:
    assert normal({"role": "assistant", **content}) == [{"role": "assistant", "content": ""}]


def test_nulls_inside_an_assistant_message_cost_and_change_nothing() -> None:
    keys = ("tool_calls", "function_call", "refusal", "audio", "name", "tool_call_id", "annotations")
    nulls = dict.fromkeys(keys)

    assert normal({"role": "assistant", "content": "x", **nulls}) == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("arguments", ["", "null", None, "{}", " null "])
def test_empty_arguments_become_an_empty_object(arguments: Any) -> None:
    assert normal(call(arguments))[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_content_beside_tool_calls_is_kept() -> None:
    message = normal(call('{"a": 1}', content="Let me look."))[0]

    assert message["content"] == "Let me look."
    assert message["tool_calls"] == [
        {"type": "function", "id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]


def test_the_deprecated_function_call_becomes_a_tool_call() -> None:
    message = normal(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    )[0]

    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_tool_result_keeps_its_call_id() -> None:
    assert normal({"role": "tool", "tool_call_id": "c1", "content": "5"})[0]["tool_call_id"] == "c1"


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert normal({"role": "assistant", "content": None, "refusal": "No."})[0]["content"] == "No."


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_both_spellings_of_reasoning_are_taken(key: str) -> None:
    assert normal({"role": "assistant", "content": "x", key: "hm"})[0]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"type": "file", "file": {}},
    ],
)
def test_a_media_part_on_a_text_model_is_refused_by_its_place(part: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]

    with pytest.raises(UnsupportedParameter) as caught:
        normal(USER, {"role": "user", "content": content})

    assert caught.value.param == "messages[1].content[1]"
    assert "messages[1].content[1]" in caught.value.message
    assert "its capabilities: chat, completion" in caught.value.message


@pytest.mark.parametrize("kind", ["input_audio", "file", "video_url", "audio_url"])
def test_a_model_that_takes_pictures_takes_no_other_media(kind: str) -> None:
    part = {"type": kind, kind: {"url": "https://example.com/"}}

    with pytest.raises(UnsupportedParameter, match=kind) as caught:
        normal({"role": "user", "content": [part]}, vision=True)

    assert caught.value.param == "messages[0].content[0]"


def test_a_backend_without_sight_refuses_pictures_whatever_the_card_says() -> None:
    with pytest.raises(UnsupportedParameter, match="on the backend 'llamacpp'") as caught:
        normalise(check(*shown("data:image/png;base64,")), target("llamacpp", sees=False))

    assert caught.value.param == "messages[0].content[1]"


def test_a_picture_reaches_a_model_that_takes_pictures_with_the_text_in_its_order() -> None:
    content = [
        {"type": "text", "text": "Before"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,", "detail": "low"}},
        {"type": "text", "text": "after"},
    ]

    assert normal({"role": "user", "content": content}, vision=True)[0]["content"] == content


def test_of_parts_beside_a_picture_only_what_is_known_goes_on() -> None:
    content = [
        {"type": "text", "text": "?", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": ""},
        {"type": "refusal", "refusal": "No."},
        {"type": "image_url", "image_url": {"url": "data:", "detail": None, "format": "x"}, "uuid": "1"},
    ]

    assert normal({"role": "user", "content": content}, vision=True)[0]["content"] == [
        {"type": "text", "text": "?"},
        {"type": "text", "text": "No."},
        {"type": "image_url", "image_url": {"url": "data:"}},
    ]


def test_vllm_is_told_of_no_detail_and_the_caller_that_it_does_nothing() -> None:
    messages = check(*shown("data:", detail="high"))
    (_, picture) = normalise(messages, target("vllm"))[0]["content"]

    assert picture["image_url"] == {"url": "data:"}
    assert idle_detail(messages, target("vllm")) == ("image_url.detail",)
    assert idle_detail(messages, target("litellm")) == ()
    assert idle_detail(check(*shown("data:", detail="auto")), target("vllm")) == ()
    assert idle_detail(check(USER), target("vllm")) == ()


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "function", "name", "arguments", "image_url"]), inner, max_size=3
        )
    ),
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "function"])},
    optional=dict.fromkeys(("content", "name", "tool_calls", "function_call", "refusal", "audio"), VALUES),
)


@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_any_message_is_refused_or_becomes_strings(messages: list[dict[str, Any]]) -> None:
    try:
        result = normal(*messages)
    except (ValidationFailed, UnsupportedParameter):
        return

    assert all(isinstance(message["content"], str) for message in result)
    assert all(value is not None for message in result for value in message.values())
