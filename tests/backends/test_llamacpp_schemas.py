"""Whatever schema comes, what the shipped model writes under it satisfies it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from jsonschema import Draft202012Validator

from tests.backends.contract import CHAT, endings_of, events_of, request, text_of
from tests.backends.generated_schemas import generated
from tests.backends.shipped_model import MODEL, a_model

pytestmark = pytest.mark.engine

NUM_SCHEMAS = 200
MAX_TOKENS = 40


@pytest.mark.timeout(900)
async def test_what_is_generated_under_a_schema_satisfies_it():
    schemas = generated(NUM_SCHEMAS)
    async with a_model(num_slots=8, n_ctx=256) as model:

        async def answer(index: int, schema: dict[str, Any]) -> tuple[str, str]:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            fields: dict[str, Any] = {"temperature": (index % 3) / 2, "seed": index, "stream": index % 2 == 0}
            asked = request(MODEL, CHAT, response_format=form, max_tokens=MAX_TOKENS, **fields)
            events = await events_of(model, asked, patience_s=800)
            return text_of(events), endings_of(events)[0].finish_reason

        answers = await asyncio.gather(*(answer(i, schema) for i, schema in enumerate(schemas)))

    num_whole = 0
    for schema, (text, reason) in zip(schemas, answers, strict=True):
        assert reason in ("stop", "length")
        if reason == "stop":
            num_whole += 1
            Draft202012Validator(schema).validate(json.loads(text))
    assert len(schemas) == NUM_SCHEMAS
    assert num_whole > 0.9 * NUM_SCHEMAS
