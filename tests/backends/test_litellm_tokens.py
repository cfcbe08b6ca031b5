"""Tokens of a model that somebody else serves: how many, by guess."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.base import Backend
from backends.errors import NotSupported, UnsupportedParameter
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import ChatPrompt, TextPrompt
from tests.backends.litellm_backends import a_backend, a_card, environment, needs_litellm

pytestmark = needs_litellm

NOWHERE = "http://127.0.0.1:9"
"""Nobody is asked."""


@pytest.fixture
async def backend(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    environment(monkeypatch, NOWHERE)
    async with a_backend(a_card("chat", "openai/gpt-4o")) as made:
        yield made


async def test_they_are_counted_and_marked_as_an_estimate(backend: Backend):
    text = TextPrompt(text="one two three")
    chat = ChatPrompt(messages=[{"role": "user", "content": "one two three"}])

    for prompt in (text, chat):
        found = await backend.tokenize(TokenizeRequest(model="chat", prompt=prompt))
        assert found == Tokens(await backend.count_tokens("chat", prompt), is_estimated=True)


async def test_which_ones_nobody_knows(backend: Backend):
    asked = TokenizeRequest(model="chat", prompt=TextPrompt(text="a"), with_strings=True)
    with pytest.raises(UnsupportedParameter) as refused:
        await backend.tokenize(asked)

    assert refused.value.param == "return_token_strs"
    with pytest.raises(NotSupported):
        await backend.detokenize(DetokenizeRequest(model="chat", token_ids=(1,)))
