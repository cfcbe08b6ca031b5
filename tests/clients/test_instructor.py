"""Instructor: pydantic models out of a chat, by each of its ways."""

from __future__ import annotations

import instructor
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.conftest import Served

CLIENT = "[instructor](https://github.com/567-labs/instructor)"
PACKAGE = "instructor"


class ExtractUser(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize(
    "mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA], ids=lambda mode: mode.value
)
def test_structured_result__a_sentence_becomes_a_user(fake: Served, mode: instructor.Mode) -> None:
    client = instructor.from_openai(OpenAI(base_url=fake.base_url, api_key="not-needed"), mode=mode)

    user = client.chat.completions.create(
        model=fake.model,
        response_model=ExtractUser,
        messages=[{"role": "user", "content": "John Doe is 30 years old."}],
        max_retries=0,
    )

    assert isinstance(user, ExtractUser)
