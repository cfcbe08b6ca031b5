"""Tokens of the shipped model: exactly those that it generates from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.errors import InvalidParameter
from backends.llamacpp.loaded import LlamaCppModel
from backends.llamacpp.model import GgufModel
from backends.tokenizing import DetokenizeRequest, TokenizeRequest
from backends.types import ChatPrompt, Started, TextPrompt, TokenPrompt
from tests.backends.contract import events_of, request
from tests.backends.shipped_model import MODEL, a_model, gguf

pytestmark = [pytest.mark.engine, pytest.mark.timeout(60)]

CHAT = ChatPrompt(messages=[{"role": "user", "content": "Zwölf Boxkämpfer 🥊"}])


@pytest.fixture
async def model() -> AsyncIterator[LlamaCppModel]:
    async with a_model(n_ctx=256, num_slots=1) as made:
        yield made


@pytest.fixture(scope="module")
def weights() -> GgufModel:
    return GgufModel(gguf())


async def test_a_conversation_has_the_tokens_that_it_is_generated_from(model: LlamaCppModel):
    found = await model.tokenize(TokenizeRequest(model=MODEL, prompt=CHAT))

    events = await events_of(model, request(MODEL, CHAT, max_tokens=1))  # type: ignore[arg-type]
    same = await events_of(model, request(MODEL, TokenPrompt(token_ids=list(found.ids or ())), max_tokens=1))  # type: ignore[arg-type]
    assert isinstance(events[0], Started)
    assert events[0].prompt_tokens == found.count == len(found.ids or ())
    assert events[1] == same[1]
    assert found.context_length == 256
    assert not found.is_estimated


async def test_the_text_of_a_conversation_is_what_the_template_wrote(model: LlamaCppModel):
    found = await model.tokenize(TokenizeRequest(model=MODEL, prompt=CHAT))

    text = await model.detokenize(DetokenizeRequest(model=MODEL, token_ids=found.ids or ()))

    assert text.endswith("<|im_start|>user\nZwölf Boxkämpfer 🥊<|im_end|>\n<|im_start|>assistant\n")


async def test_the_vocabulary_spells_each_token(model: LlamaCppModel):
    found = await model.tokenize(
        TokenizeRequest(model=MODEL, prompt=TextPrompt(text="Once upon"), with_strings=True)
    )

    assert found.strings == ("Once", "Ġupon")


async def test_a_prompt_longer_than_the_context_has_tokens_all_the_same(model: LlamaCppModel):
    found = await model.tokenize(TokenizeRequest(model=MODEL, prompt=TextPrompt(text="word " * 1000)))

    assert found.count > 256


@pytest.mark.parametrize("token", [-1, 49_152, 1 << 30])
async def test_an_id_outside_the_vocabulary_is_refused(model: LlamaCppModel, token: int):
    with pytest.raises(InvalidParameter) as refused:
        await model.detokenize(DetokenizeRequest(model=MODEL, token_ids=(1, token)))

    assert refused.value.param == "tokens"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # Its vocabulary has no token for some control characters, nor for the first byte of most characters beyond.
    st.text(
        st.characters(exclude_categories=["C"], exclude_characters="\0", max_codepoint=0x1FFFF),
        max_size=40,
    )
)
def test_what_was_a_text_becomes_it_again(weights: GgufModel, text: str):
    tokens = weights.tokenize(text, add_special=False, parse_special=False)

    assert weights.detokenize(tokens) == text
