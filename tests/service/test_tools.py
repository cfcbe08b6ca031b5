"""Tools with the shipped model, which was made for none, through a served instance and OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.conformance.conftest import Instance

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

MODEL = "smollm2"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome", "Köln"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
    },
    "required": ["city", "days"],
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": name, "description": f"Get the {name} of a city", "parameters": PARAMETERS},
    }
    for name in ("weather", "time")
]
TIME: Any = {"type": "function", "function": {"name": "time"}}
QUESTION: Any = [{"role": "user", "content": "What will the weather be in Rome tomorrow?"}]


def check_arguments(arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(arguments)
    jsonschema.validate(value, PARAMETERS)
    return value


@pytest.mark.parametrize(
    ("choice", "names", "temperature"),
    [("required", {"weather", "time"}, 0.0), (TIME, {"time"}, 1.5)],
    ids=["required", "named"],
)
def test_a_tool_that_must_be_called_is_called(
    client: openai.OpenAI, choice: Any, names: set[str], temperature: float
) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice=choice,
        temperature=temperature,
        max_tokens=200,
    )

    (made,) = answer.choices
    assert made.finish_reason == "tool_calls"
    assert made.message.content is None
    (called,) = made.message.tool_calls or []
    assert called.type == "function"
    assert called.id
    assert called.function.name in names
    check_arguments(called.function.arguments)


def test_the_stream_of_a_call_is_the_call(client: openai.OpenAI) -> None:
    fields: Any = {
        "model": MODEL,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": TIME,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**fields, max_tokens=200)
    stream = client.chat.completions.create(**fields, max_tokens=200, stream=True)

    deltas, reasons = [], []
    for chunk in stream:
        for part in chunk.choices:
            deltas += part.delta.tool_calls or []
            reasons += [part.finish_reason] if part.finish_reason else []
            assert not part.delta.content
    first, *others = deltas
    assert first.id
    assert first.type == "function"
    assert first.function is not None
    assert all(delta.id is None and delta.type is None and delta.index == 0 for delta in others)
    arguments = "".join(delta.function.arguments or "" for delta in deltas if delta.function)
    (called,) = whole.choices[0].message.tool_calls or []
    assert called.type == "function"
    assert (first.function.name, arguments) == (called.function.name, called.function.arguments)
    assert len(others) > 1
    assert reasons == ["tool_calls"]


def test_several_calls_may_be_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=True,
        temperature=0,
        max_tokens=100,
    )

    calls = answer.choices[0].message.tool_calls or []
    assert calls
    for called in calls[: -1 if answer.choices[0].finish_reason == "length" else None]:
        assert called.type == "function"
        check_arguments(called.function.arguments)
    assert len({called.id for called in calls}) == len(calls)


def test_a_call_that_is_cut_off_ends_with_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice=TIME, temperature=0, max_tokens=20
    )

    assert answer.choices[0].finish_reason == "length"


def test_every_choice_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        n=2,
        temperature=1,
        max_tokens=200,
    )

    calls = [called for choice in answer.choices for called in choice.message.tool_calls or []]
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls"] * 2
    assert len({called.id for called in calls}) == len(calls) == 2


def test_without_a_choice_of_tools_there_is_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="none", max_tokens=8, temperature=0
    )
    plain = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8, temperature=0)

    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert answer.usage is not None
    assert plain.usage is not None
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens


def test_a_result_goes_back_to_the_model(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required", temperature=0, max_tokens=200
    )
    message = asked.choices[0].message
    (called,) = message.tool_calls or []
    history: Any = [
        *QUESTION,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": called.id, "content": "sunny, 21 degrees"},
    ]

    answer = client.chat.completions.create(
        model=MODEL, messages=history, tools=TOOLS, tool_choice="none", max_tokens=20
    )

    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert asked.usage is not None
    assert answer.usage.prompt_tokens > 20


def test_one_call_at_most_and_strict_functions_are_taken(client: openai.OpenAI) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=strict,
        tool_choice="auto",
        parallel_tool_calls=False,
        max_tokens=60,
        temperature=0,
    )

    message = answer.choices[0].message
    assert len(message.tool_calls or []) <= 1
    assert message.content or message.tool_calls


def test_a_schema_that_no_arguments_can_have_is_refused(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[tool], tool_choice="required")
    assert caught.value.code == "invalid_schema"


def test_the_tokens_of_a_conversation_are_those_of_its_usage(
    instance: Instance, client: openai.OpenAI
) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, max_tokens=1, temperature=0
    )
    with httpx.Client(base_url=instance.base_url, timeout=60, trust_env=False) as http:
        body = {"model": MODEL, "messages": QUESTION, "tools": TOOLS}
        found = http.post("/tokenize", json=body).json()
        back = http.post("/detokenize", json={"model": MODEL, "tokens": found["tokens"]}).json()
        text = http.post("/tokenize", json={"model": MODEL, "prompt": "Köln 🥊", "return_token_strs": True})
        wrong = http.post("/detokenize", json={"model": MODEL, "tokens": [49_152]})

    assert answer.usage is not None
    assert found["count"] == len(found["tokens"]) == answer.usage.prompt_tokens
    assert found["max_model_len"] == 8192
    assert "What will the weather be in Rome tomorrow?<|im_end|>" in back["prompt"]
    assert len(text.json()["token_strs"]) == text.json()["count"]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tokens")
