"""Pydantic AI: an agent with a typed result and with a tool."""

from __future__ import annotations

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRequest, ModelSettings, NativeOutput, ToolDefinition
from pydantic_ai.direct import model_request
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import Served

CLIENT = "[pydantic-ai](https://github.com/pydantic/pydantic-ai)"
PACKAGE = "pydantic-ai-slim"


class CityLocation(BaseModel):
    city: str = Field(max_length=20)
    country: str = Field(max_length=20)


def model_at(served: Served) -> OpenAIChatModel:
    return OpenAIChatModel(
        served.model, provider=OpenAIProvider(base_url=served.base_url, api_key="not-needed")
    )


async def test_chat__an_agent_answers(llamacpp: Served) -> None:
    agent = Agent(
        model_at(llamacpp),
        instructions="Be concise, reply with one sentence.",
        model_settings=ModelSettings(max_tokens=24),
    )

    result = await agent.run('Where does "hello world" come from?')

    assert result.output


async def test_stream__text_comes_as_it_is_made(llamacpp: Served) -> None:
    agent = Agent(model_at(llamacpp), model_settings=ModelSettings(max_tokens=24))

    async with agent.run_stream("Write a sentence about the sea.") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]

    assert len(pieces) > 5


async def test_structured_result__the_output_is_a_pydantic_model(llamacpp: Served) -> None:
    agent = Agent(model_at(llamacpp), output_type=CityLocation)

    result = await agent.run("Where were the olympics held in 2012?")

    assert isinstance(result.output, CityLocation)
    assert result.usage.input_tokens


async def test_structured_result__native_output_is_a_pydantic_model(llamacpp: Served) -> None:
    agent = Agent(model_at(llamacpp), output_type=NativeOutput(CityLocation))

    result = await agent.run("Where were the olympics held in 2012?")

    assert isinstance(result.output, CityLocation)


async def test_tools__a_call_that_must_come_comes(llamacpp: Served) -> None:
    class Divide(BaseModel):
        """Divide two numbers."""

        numerator: int = Field(ge=0, le=999)
        denominator: int = Field(ge=1, le=999)

    response = await model_request(
        model_at(llamacpp),
        [ModelRequest.user_text_prompt("What is 123 / 456?")],
        model_request_parameters=ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name="divide",
                    description=Divide.__doc__,
                    parameters_json_schema=Divide.model_json_schema(),
                )
            ],
            allow_text_output=False,
        ),
    )

    (call,) = response.tool_calls
    assert call.tool_name == "divide"
    assert Divide(**call.args_as_dict())


async def test_tools__a_tool_is_called_and_its_result_talked_about(fake: Served) -> None:
    agent = Agent(model_at(fake))

    @agent.tool_plain
    def roll_dice() -> str:
        """Roll a six-sided die and return the result."""
        return "four"

    result = await agent.run("roll_dice for me")

    assert result.output == "four"
