"""OpenAI's own client for Python."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import Served

CLIENT = "[openai](https://github.com/openai/openai-python) (Python)"
PACKAGE = "openai"


class Trip(BaseModel):
    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_chat__a_question_is_answered(llamacpp: Served) -> None:
    client = OpenAI(base_url=llamacpp.base_url, api_key="not-needed")

    completion = client.chat.completions.create(
        model=llamacpp.model,
        messages=[
            {"role": "system", "content": "Talk like a pirate."},
            {"role": "user", "content": "How do I check if a Python object is an instance of a class?"},
        ],
        max_tokens=24,
    )

    assert completion.choices[0].message.content
    assert completion.usage
    assert completion.usage.completion_tokens <= 24


def test_chat__the_async_client_asks_several_at_once(llamacpp: Served) -> None:
    async def main() -> list[str | None]:
        async with AsyncOpenAI(base_url=llamacpp.base_url, api_key="not-needed") as client:
            asked = [
                client.chat.completions.create(
                    model=llamacpp.model, messages=[{"role": "user", "content": "Say hello"}], max_tokens=8
                )
                for _ in range(3)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert all(asyncio.run(main()))


def test_stream__the_pieces_are_the_text(llamacpp: Served) -> None:
    client = OpenAI(base_url=llamacpp.base_url, api_key="not-needed")
    asked = {
        "model": llamacpp.model,
        "messages": [{"role": "user", "content": "Write a sentence about the sea."}],
        "max_tokens": 24,
        "temperature": 0,
    }

    stream = client.chat.completions.create(**asked, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]

    assert len(pieces) > 5
    assert "".join(pieces) == client.chat.completions.create(**asked).choices[0].message.content


def test_stream__the_stream_helper_gives_events_and_the_final_completion(llamacpp: Served) -> None:
    client = OpenAI(base_url=llamacpp.base_url, api_key="not-needed")

    with client.chat.completions.stream(
        model=llamacpp.model, messages=[{"role": "user", "content": "Say hello"}]
    ) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()

    assert final.choices[0].message.content == said
    assert final.choices[0].finish_reason == "stop"


def test_structured_result__parse_gives_a_pydantic_model(llamacpp: Served) -> None:
    client = OpenAI(base_url=llamacpp.base_url, api_key="not-needed")

    completion = client.chat.completions.parse(
        model=llamacpp.model,
        messages=[{"role": "user", "content": "Two days in Rome, please."}],
        response_format=Trip,
    )

    assert isinstance(completion.choices[0].message.parsed, Trip)


def test_tools__a_call_is_made_answered_and_talked_about(fake: Served) -> None:
    client = OpenAI(base_url=fake.base_url, api_key="not-needed")
    function = {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER}
    messages = [{"role": "user", "content": "Use get_weather for Lima."}]

    first = client.chat.completions.create(
        model=fake.model, messages=messages, tools=[{"type": "function", "function": function}]
    )
    call = first.choices[0].message.tool_calls[0]
    messages += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
    ]
    second = client.chat.completions.create(
        model=fake.model, messages=messages, tools=[{"type": "function", "function": function}]
    )

    assert first.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    assert second.choices[0].message.content == "Sunny."


def test_tools__a_call_that_must_come_comes_and_its_result_is_taken(llamacpp: Served) -> None:
    client = OpenAI(base_url=llamacpp.base_url, api_key="not-needed")
    parameters = WEATHER | {"properties": {"city": {"type": "string", "maxLength": 20}}}
    function = {"name": "get_weather", "description": "The weather of a city.", "parameters": parameters}
    messages = [{"role": "user", "content": "What is the weather like in Paris today?"}]

    first = client.chat.completions.create(
        model=llamacpp.model,
        messages=messages,
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
    )
    call = first.choices[0].message.tool_calls[0]
    messages += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
    ]
    second = client.chat.completions.create(
        model=llamacpp.model,
        messages=messages,
        tools=[{"type": "function", "function": function}],
        tool_choice="none",
        max_tokens=24,
    )

    assert first.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    assert second.choices[0].message.content


def test_embeddings__one_vector_per_text_in_order(embedder: Served) -> None:
    client = OpenAI(base_url=embedder.base_url, api_key="not-needed")

    response = client.embeddings.create(model=embedder.model, input=["river", "stone"])

    assert [one.index for one in response.data] == [0, 1]
    assert [len(one.embedding) for one in response.data] == [384, 384]
