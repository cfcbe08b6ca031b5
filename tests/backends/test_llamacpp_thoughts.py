"""Thoughts of a real engine: a template that opens the span, on the shipped model."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.llamacpp.context import ContextConfig
from backends.llamacpp.engine import EngineConfig
from backends.llamacpp.loaded import LlamaCppModel
from backends.llamacpp.model import GgufModel
from backends.llamacpp.template import compile_template
from backends.types import ChatPrompt, Event, Finished, ReasoningDelta, TextDelta
from tests.backends.contract import events_of, request
from tests.backends.shipped_model import MODEL, gguf

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "<think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}"
)


@pytest.fixture
async def model() -> AsyncIterator[LlamaCppModel]:
    weights = GgufModel(gguf())
    context = ContextConfig(
        tokens_per_sequence=256,
        num_slots=2,
        n_batch=64,
        n_threads=1,
        n_threads_batch=1,
        kv_unified=False,
        flash_attention=False,
    )
    config = EngineConfig(context=context, prefill_chunk_tokens=32, context_length=256, cell_bytes=23_040)
    template = compile_template(TEMPLATE, bos_token="", eos_token="", warn=warnings.warn)
    made = LlamaCppModel(MODEL, weights, template, config, memory_bytes=0, loop=asyncio.get_running_loop())
    yield made
    await made.aclose()


async def said(model: LlamaCppModel, kwargs: dict[str, Any], **fields: Any) -> list[Event]:
    prompt = ChatPrompt(messages=[{"role": "user", "content": "Say hello."}], template_kwargs=kwargs)
    wanted = request(MODEL, prompt, **{"max_tokens": 6, "ignore_eos": True, "temperature": 0.0, **fields})
    return await events_of(model, wanted)  # type: ignore[arg-type]


def text_of(events: list[Event], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_begins_inside_is_a_thought(model: LlamaCppModel, stream: bool):
    events = await said(model, {}, stream=stream)

    finished = events[-1]
    assert isinstance(finished, Finished)
    assert text_of(events, ReasoningDelta)
    assert not text_of(events, TextDelta)
    assert finished.usage.reasoning_tokens == finished.usage.completion_tokens == 6


async def test_a_span_that_the_template_closed_is_none(model: LlamaCppModel):
    events = await said(model, {"enable_thinking": False})

    finished = events[-1]
    assert isinstance(finished, Finished)
    assert text_of(events, TextDelta)
    assert not text_of(events, ReasoningDelta)
    assert finished.usage.reasoning_tokens == 0


async def test_an_effort_of_none_closes_it(model: LlamaCppModel):
    assert await said(model, {}, reasoning_effort="none") != await said(model, {})
    assert not text_of(await said(model, {}, reasoning_effort="none"), ReasoningDelta)


async def test_equal_choices_think_equally(model: LlamaCppModel):
    events = await said(model, {}, n=2)

    thoughts = ["", ""]
    for event in events:
        if isinstance(event, ReasoningDelta):
            thoughts[event.index] += event.text
    finished = events[-1]
    assert thoughts[0] == thoughts[1] != ""
    assert isinstance(finished, Finished)
    assert finished.usage.reasoning_tokens == finished.usage.completion_tokens == 12


@pytest.mark.parametrize(
    "constraint",
    [
        {"structured_outputs": {"choice": ["hello", "goodbye"]}},
        {"grammar": 'root ::= "hello" | "goodbye"'},
        {"structured_outputs": {"grammar": 'root ::= "hello" | "goodbye"'}},
    ],
)
async def test_what_is_asked_beside_the_thoughts_holds_for_the_answer(
    model: LlamaCppModel, constraint: dict[str, Any]
):
    events = await said(
        model,
        {"enable_thinking": False},
        ignore_eos=False,
        max_tokens=20,
        **constraint,
    )

    assert text_of(events, TextDelta) in ("hello", "goodbye")
