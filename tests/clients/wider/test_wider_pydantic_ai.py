"""What users of Pydantic AI do besides its quick start."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import Served


class Trip(BaseModel):
    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


def model_at(served: Served) -> OpenAIChatModel:
    return OpenAIChatModel(
        served.model, provider=OpenAIProvider(base_url=served.base_url, api_key="not-needed")
    )


async def test_a_structured_result_streams(llamacpp: Served) -> None:
    agent = Agent(model_at(llamacpp), output_type=Trip)

    async with agent.run_stream("Two days in Rome, please.") as result:
        *_, last = [piece async for piece in result.stream_output(debounce_by=None)]

    assert isinstance(last, Trip)


async def test_one_of_several_results_is_chosen(llamacpp: Served) -> None:
    class Refusal(BaseModel):
        because: Literal["full", "closed"]

    agent = Agent(model_at(llamacpp), output_type=[Trip, Refusal])

    result = await agent.run("Two days in Rome, please.")

    assert isinstance(result.output, Trip | Refusal)


async def test_a_conversation_goes_on(llamacpp: Served) -> None:
    agent = Agent(model_at(llamacpp), model_settings=ModelSettings(max_tokens=16, temperature=0))

    first = await agent.run("Say hello.")
    second = await agent.run("And again.", message_history=first.all_messages())

    assert second.output
    assert second.usage.input_tokens > first.usage.input_tokens


async def test_tools_stream_their_events(fake: Served) -> None:
    agent = Agent(model_at(fake))

    @agent.tool_plain
    def roll_dice() -> str:
        """Roll a six-sided die and return the result."""
        return "four"

    async with agent.run_stream("roll_dice for me") as result:
        assert await result.get_output() == "four"
