"""What users of LlamaIndex do besides its quick start."""

from __future__ import annotations

from typing import Any, Literal

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ReActAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

from tests.clients.conftest import Served


class Trip(BaseModel):
    """Where to, and for how long."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


def llm_at(served: Served, **options: Any) -> OpenAILike:
    fields: dict[str, Any] = {
        "is_chat_model": True,
        "is_function_calling_model": True,
        "context_window": 8192,
        "max_tokens": 200,
        "max_retries": 0,
    }
    return OpenAILike(
        model=served.model, api_base=served.base_url, api_key="not-needed", **(fields | options)
    )


async def test_an_agent_streams_while_it_calls_functions(fake: Served) -> None:
    asked_for: list[str] = []

    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked_for.append(city)
        return f"It is sunny in {city}."

    handler = FunctionAgent(tools=[get_weather], llm=llm_at(fake)).run("get_weather of Lima")
    deltas = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]

    assert str(await handler) == f"It is sunny in {asked_for[0]}."
    assert "".join(deltas)


async def test_an_agent_that_reasons_in_text_is_answered(llamacpp: Served) -> None:
    agent = ReActAgent(tools=[], llm=llm_at(llamacpp, max_tokens=24, temperature=0))
    handler = agent.run("Say hello.", max_iterations=1)
    deltas = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]

    assert "".join(deltas)


def test_structured_predict_gives_the_model(llamacpp: Served) -> None:
    llm = llm_at(llamacpp).as_structured_llm(Trip)

    response = llm.chat([ChatMessage(role="user", content="Two days in Rome, please.")])

    assert isinstance(response.raw, Trip)


def test_structured_output_without_functions_gives_the_model(llamacpp: Served) -> None:
    llm = llm_at(llamacpp, should_use_structured_outputs=True)

    response = llm.as_structured_llm(Trip).chat([ChatMessage(role="user", content="Two days in Rome.")])

    assert isinstance(response.raw, Trip)


def test_a_stream_of_chat_with_tools_has_the_call_at_its_end(llamacpp: Served) -> None:
    def book(city: str, days: int) -> str:
        """Book a trip."""
        return f"{days} days in {city}"

    llm = llm_at(llamacpp)
    last = None
    for chunk in llm.stream_chat_with_tools(
        [FunctionTool.from_defaults(fn=book, fn_schema=Trip)],
        user_msg="A trip to Rome, please.",
        tool_required=True,
    ):
        last = chunk

    assert last is not None
    calls = llm.get_tool_calls_from_response(last)
    assert [call.tool_name for call in calls] == ["book"] * len(calls)
    assert calls


def test_a_text_model_completes_and_streams(llamacpp: Served) -> None:
    llm = llm_at(llamacpp, is_chat_model=False, is_function_calling_model=False, max_tokens=8)

    assert llm.complete("The sea is").text
    assert [piece.delta for piece in llm.stream_complete("The sea is")]
