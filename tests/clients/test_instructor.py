"""Instructor: pydantic models out of a chat, by each of its ways."""

from __future__ import annotations

import instructor
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import Served

CLIENT = "[instructor](https://github.com/567-labs/instructor)"
PACKAGE = "instructor"


class ExtractUser(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


@pytest.mark.parametrize(
    "mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA], ids=lambda mode: mode.value
)
def test_structured_result__a_sentence_becomes_a_user(llamacpp: Served, mode: instructor.Mode) -> None:
    client = instructor.from_openai(OpenAI(base_url=llamacpp.base_url, api_key="not-needed"), mode=mode)

    user = client.chat.completions.create(
        model=llamacpp.model,
        response_model=ExtractUser,
        messages=[{"role": "user", "content": "John Doe is 30 years old."}],
        max_retries=0,
    )

    assert isinstance(user, ExtractUser)
