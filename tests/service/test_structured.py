"""Constrained answers of the shipped model through a served instance and OpenAI's own client."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

MODEL = "smollm2"
QUESTION: Any = [{"role": "user", "content": "Tell me about the weather in Rome."}]
CHAIN = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "c"'


class Day(BaseModel):
    city: Literal["Oslo", "Rome"]
    degrees: int = Field(ge=-30, le=50)
    wind: Literal["calm", "storm"] | None


class Forecast(BaseModel):
    days: list[Day] = Field(min_length=1, max_length=2)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_pydantic_model_is_parsed(client: openai.OpenAI, temperature: float) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=QUESTION,
        response_format=Forecast,
        temperature=temperature,
        seed=3,
        max_tokens=200,
    )

    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Forecast)


def test_a_stream_of_a_pydantic_model_is_parsed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, response_format=Forecast, temperature=0, max_tokens=200
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        answer = stream.get_final_completion()

    assert len(pieces) > 5
    assert isinstance(answer.choices[0].message.parsed, Forecast)


def test_what_max_tokens_cut_is_length(client: openai.OpenAI) -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 20}
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, extra_body={"structured_outputs": {"json": schema}}, max_tokens=9
    )

    assert answer.choices[0].finish_reason == "length"
    assert re.fullmatch(r"\[([0-9](, )?)+,?", answer.choices[0].message.content or "")


@pytest.mark.parametrize("stream", [False, True])
def test_text_completions_are_held_to_a_regex(client: openai.OpenAI, stream: bool) -> None:
    extra: Any = {"structured_outputs": {"regex": "[0-9]{2}:[0-9]{2}"}}
    answer: Any = client.completions.create(
        model=MODEL, prompt="It is now ", extra_body=extra, n=2, temperature=1.0, stream=stream
    )

    texts = {0: "", 1: ""}
    for chunk in answer if stream else [answer]:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert all(re.fullmatch("[0-9]{2}:[0-9]{2}", text) for text in texts.values())


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": CHAIN}}, "structured_outputs.grammar"),
        (
            {"structured_outputs": {"json": {"allOf": [{"multipleOf": n} for n in (9973, 9967, 9949)]}}},
            "structured_outputs.json",
        ),
    ],
    ids=["not", "lookahead", "chain", "multiples"],
)
def test_what_cannot_be_enforced_is_a_400_that_names_it(
    client: openai.OpenAI, extra: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, extra_body=extra, max_tokens=8)

    assert (refused.value.code, refused.value.param) == ("invalid_schema", param)
    assert json.dumps(refused.value.body)
    assert client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2).choices
