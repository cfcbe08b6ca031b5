"""What users of Instructor do besides its quick start."""

from __future__ import annotations

from typing import Literal

import instructor
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import Served


class Trip(BaseModel):
    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


ASK = [{"role": "user", "content": "Two days in Rome, please."}]


@pytest.mark.parametrize(
    "mode", [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]
)
def test_a_partial_result_grows_as_it_streams(llamacpp: Served, mode: instructor.Mode) -> None:
    client = instructor.from_openai(OpenAI(base_url=llamacpp.base_url, api_key="not-needed"), mode=mode)

    *_, last = client.chat.completions.create_partial(
        model=llamacpp.model, response_model=Trip, messages=ASK, max_retries=0
    )

    assert Trip(city=last.city, days=last.days)


async def test_the_async_client_extracts(llamacpp: Served) -> None:
    client = instructor.from_openai(
        AsyncOpenAI(base_url=llamacpp.base_url, api_key="not-needed"), mode=instructor.Mode.TOOLS
    )

    trip = await client.chat.completions.create(
        model=llamacpp.model, response_model=Trip, messages=ASK, max_retries=0
    )

    assert isinstance(trip, Trip)


def test_the_completion_comes_beside_the_result(llamacpp: Served) -> None:
    client = instructor.from_openai(OpenAI(base_url=llamacpp.base_url, api_key="not-needed"))

    trip, completion = client.chat.completions.create_with_completion(
        model=llamacpp.model, response_model=Trip, messages=ASK, max_retries=0
    )

    assert isinstance(trip, Trip)
    assert completion.usage.completion_tokens
