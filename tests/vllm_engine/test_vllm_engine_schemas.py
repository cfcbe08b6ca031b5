"""Two hundred schemas by chance on the real vLLM: what comes out whole satisfies its schema, and what cannot be held is
refused by name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from backends.base import Backend
from backends.errors import InvalidGrammar
from tests.backends.contract import CHAT, endings_of, events_of, finished_of, request, text_of
from tests.backends.generated_schemas import generated
from tests.vllm_engine.shared_engine import MODEL

AT_ONCE = 16


@pytest.mark.timeout(900)
async def test_what_is_written_under_a_schema_satisfies_it(backend: Backend) -> None:
    schemas = generated(200)
    few = asyncio.Semaphore(AT_ONCE)

    async def answer(index: int, schema: dict[str, Any]) -> tuple[str, str]:
        """The text, and how it ended."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        fields: dict[str, Any] = {"temperature": (index % 3) / 2, "seed": index, "stream": index % 2 == 0}
        asked = request(MODEL, CHAT, response_format=form, max_tokens=40, **fields)
        async with few:
            try:
                events = await events_of(backend, asked, patience_s=600)
            except InvalidGrammar as refused:
                return refused.message, "refused"
        return text_of(events), endings_of(events)[0].finish_reason

    answers = await asyncio.gather(*(answer(i, schema) for i, schema in enumerate(schemas)))

    whole = [(schema, text) for schema, (text, end) in zip(schemas, answers, strict=True) if end == "stop"]
    for schema, text in whole:
        Draft202012Validator(schema).validate(json.loads(text))
    refused = [text for text, end in answers if end == "refused"]
    assert len(whole) > 0.8 * len(schemas)
    assert refused == []
    assert finished_of(await events_of(backend, request(MODEL))).usage.completion_tokens == 12
