"""What users of LangChain do besides its quick start."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.clients.conftest import Served


class Trip(BaseModel):
    """Where to, and for how long."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


def llm_at(served: Served, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=served.base_url,
        api_key=SecretStr("not-needed"),
        model=served.model,
        max_retries=0,
        **options,
    )


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [None, True, False])
def test_each_method_of_structured_output_gives_the_model(
    llamacpp: Served, method: Any, strict: bool | None
) -> None:
    llm = llm_at(llamacpp).with_structured_output(Trip, method=method, strict=strict)

    assert isinstance(llm.invoke("Two days in Rome, please."), Trip)


def test_json_mode_gives_an_object(fake: Served) -> None:
    # A small model writes an object without end.
    llm = llm_at(fake).with_structured_output(Trip, method="json_mode", include_raw=True)

    result = llm.invoke("Two days in Rome, please. Answer in JSON with the keys city and days.")

    assert result["raw"].text.lstrip().startswith("{")


def test_a_structured_output_streams(llamacpp: Served) -> None:
    llm = llm_at(llamacpp).with_structured_output(Trip.model_json_schema(), method="json_schema")

    pieces = list(llm.stream("Two days in Rome, please."))

    assert Trip(**pieces[-1])


def test_a_raw_structured_output_has_the_message_and_what_was_parsed(llamacpp: Served) -> None:
    llm = llm_at(llamacpp).with_structured_output(Trip, include_raw=True)

    result = llm.invoke("Two days in Rome, please.")

    assert result["parsing_error"] is None
    assert isinstance(result["parsed"], Trip)
    assert result["raw"].response_metadata["finish_reason"] == "stop"


def test_calls_stream_in_chunks_that_add_up(llamacpp: Served) -> None:
    llm = llm_at(llamacpp).bind_tools([Trip], tool_choice="any")

    gathered = None
    for chunk in llm.stream("Two days in Rome, please."):
        gathered = chunk if gathered is None else gathered + chunk

    assert gathered is not None
    assert gathered.tool_calls
    assert all(Trip(**call["args"]) for call in gathered.tool_calls)


def test_the_usage_of_a_stream_is_there_when_it_is_asked_for(llamacpp: Served) -> None:
    llm = llm_at(llamacpp, stream_usage=True, max_tokens=8)

    gathered = None
    for chunk in llm.stream("Say hello."):
        gathered = chunk if gathered is None else gathered + chunk

    assert gathered is not None
    assert gathered.usage_metadata["output_tokens"] <= 8


def test_several_questions_at_once_are_a_batch(llamacpp: Served) -> None:
    answers = llm_at(llamacpp, max_tokens=8).batch(["Say one.", "Say two.", "Say three."])

    assert all(answer.text for answer in answers)


async def test_the_async_stream_gives_events(llamacpp: Served) -> None:
    events = [
        event["event"]
        async for event in llm_at(llamacpp, max_tokens=8).astream_events("Say hello.", version="v2")
    ]

    assert events.count("on_chat_model_stream") > 3
    assert events[-1] == "on_chat_model_end"


def test_a_conversation_with_calls_and_results_is_taken_back(llamacpp: Served) -> None:
    call = {"name": "Trip", "args": {"city": "Rome", "days": 2}, "id": "call_1", "type": "tool_call"}
    history = [
        HumanMessage("Two days in Rome, please."),
        AIMessage("", tool_calls=[call]),
        ToolMessage("booked", tool_call_id="call_1"),
    ]

    assert llm_at(llamacpp, max_tokens=8).bind_tools([Trip]).invoke(history)


def test_an_agent_streams_its_steps(fake: Served) -> None:
    @tool
    def get_weather(city: str) -> str:
        """Get weather for a given city."""
        return f"It is always sunny in {city}!"

    agent = create_agent(model=llm_at(fake), tools=[get_weather])

    steps = list(
        agent.stream(
            {"messages": [{"role": "user", "content": "get_weather in sf, please"}]}, stream_mode="updates"
        )
    )

    assert [next(iter(step)) for step in steps] == ["model", "tools", "model"]


def test_an_agent_with_a_response_format_ends_with_it(fake: Served) -> None:
    agent = create_agent(model=llm_at(fake), tools=[], response_format=Trip)

    result = agent.invoke({"messages": [{"role": "user", "content": "Two days in Rome, please."}]})

    assert isinstance(result["structured_response"], Trip)
