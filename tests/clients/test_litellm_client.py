"""LiteLLM's SDK as a client, by its name for servers like OpenAI's."""

from __future__ import annotations

import json
from typing import Literal

import litellm
from pydantic import BaseModel, Field

from tests.clients.conftest import Served

CLIENT = "[LiteLLM](https://github.com/BerriAI/litellm) (SDK)"
PACKAGE = "litellm"
WEATHER = {
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "maxLength": 30}},
        "required": ["location"],
    },
}


def where(served: Served) -> dict[str, str]:
    return {"model": f"openai/{served.model}", "api_base": served.base_url, "api_key": "not-needed"}


def test_chat__completion_answers(llamacpp: Served) -> None:
    response = litellm.completion(
        **where(llamacpp), messages=[{"role": "user", "content": "Hey, how's it going?"}], max_tokens=24
    )

    assert response.choices[0].message.content
    assert response.usage.completion_tokens <= 24


def test_stream__chunks_come_as_they_are_made(llamacpp: Served) -> None:
    response = litellm.completion(
        **where(llamacpp),
        messages=[{"role": "user", "content": "Write a sentence about the sea."}],
        max_tokens=24,
        stream=True,
    )

    pieces = [chunk.choices[0].delta.content for chunk in response]

    assert len([piece for piece in pieces if piece]) > 5


def test_structured_result__a_pydantic_model_as_response_format(llamacpp: Served) -> None:
    class Event(BaseModel):
        name: str = Field(max_length=20)
        participants: list[Literal["Alice", "Bob"]] = Field(max_length=2)

    response = litellm.completion(
        **where(llamacpp),
        messages=[{"role": "user", "content": "Alice and Bob meet."}],
        response_format=Event,
    )

    assert Event.model_validate_json(response.choices[0].message.content)


def test_tools__a_call_that_must_come_comes(llamacpp: Served) -> None:
    tools = [{"type": "function", "function": WEATHER}]

    response = litellm.completion(
        **where(llamacpp),
        messages=[{"role": "user", "content": "What's the weather like in Boston?"}],
        tools=tools,
        tool_choice="required",
    )
    (call,) = response.choices[0].message.tool_calls

    assert call.function.name == "get_current_weather"
    assert set(json.loads(call.function.arguments)) == {"location"}


def test_tools__a_call_is_made(fake: Served) -> None:
    response = litellm.completion(
        **where(fake),
        messages=[{"role": "user", "content": "get_current_weather in Boston"}],
        tools=[{"type": "function", "function": WEATHER}],
        tool_choice="auto",
    )
    call = response.choices[0].message.tool_calls[0]

    assert call.function.name == "get_current_weather"
    assert set(json.loads(call.function.arguments)) == {"location"}


def test_embeddings__one_vector_per_text(embedder: Served) -> None:
    response = litellm.embedding(**where(embedder), input=["river", "stone"])

    assert [len(one["embedding"]) for one in response.data] == [384, 384]
