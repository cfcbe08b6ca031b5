"""Tokens by the real vLLM: exactly those of the tokenizer that the model was trained with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backends.base import Backend
from backends.errors import InvalidParameter
from backends.tokenizing import DetokenizeRequest, TokenizeRequest
from backends.types import ChatPrompt, Started, TextPrompt, TokenPrompt
from tests.backends.contract import CHAT, TOOLS, events_of, request
from tests.vllm_engine.shared_engine import CONTEXT, MODEL

TEXTS = ["Once upon a time", "Zwölf Boxkämpfer 🥊\n\t", "<|im_start|>user", "", "\ud7ff\u2028 \x00"]
TOLD = ChatPrompt(messages=CHAT.messages, tools=TOOLS)
CONTINUED = ChatPrompt(
    messages=[*CHAT.messages, {"role": "assistant", "content": "A river"}],
    continue_final_message=True,
    add_generation_prompt=False,
)
UNASKED = ChatPrompt(messages=CHAT.messages, add_generation_prompt=False)

_SCRIPT = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
asked = json.load(sys.stdin)
ids = [tokenizer(text, add_special_tokens=True)["input_ids"] for text in asked["texts"]]
kind = {"tokenize": True, "return_dict": False}
chats = [tokenizer.apply_chat_template(chat.pop("messages"), **kind, **chat) for chat in asked["chats"]]
print(json.dumps({"texts": ids, "chats": chats, "strings": [tokenizer.convert_ids_to_tokens(i) for i in ids]}))
"""


@pytest.fixture(scope="module")
def known(vllm_python: str, weights: Path) -> dict[str, Any]:
    """What transformers says of the same, in a process of its own."""
    chats = [
        {
            "messages": chat.messages,
            "tools": chat.tools,
            "add_generation_prompt": chat.add_generation_prompt,
            "continue_final_message": chat.continue_final_message,
        }
        for chat in (CHAT, TOLD, CONTINUED, UNASKED)
    ]
    asked = json.dumps({"texts": TEXTS, "chats": chats})
    done = subprocess.run(
        [vllm_python, "-c", _SCRIPT, str(weights)], input=asked, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("index", range(len(TEXTS)))
async def test_a_text_has_the_tokens_of_its_tokenizer(
    backend: Backend, known: dict[str, Any], index: int
) -> None:
    asked = TokenizeRequest(model=MODEL, prompt=TextPrompt(text=TEXTS[index]), with_strings=True)
    found = await backend.tokenize(asked)

    assert list(found.ids or ()) == known["texts"][index]
    assert list(found.strings or ()) == known["strings"][index]
    assert found.count == len(known["texts"][index])
    assert found.context_length == CONTEXT
    assert not found.is_estimated


@pytest.mark.parametrize("index", range(4))
async def test_a_conversation_has_the_tokens_of_its_template(
    backend: Backend, known: dict[str, Any], index: int
) -> None:
    chat = (CHAT, TOLD, CONTINUED, UNASKED)[index]
    found = await backend.tokenize(TokenizeRequest(model=MODEL, prompt=chat))

    assert list(found.ids or ()) == known["chats"][index]


async def test_a_conversation_is_generated_from_its_tokens(backend: Backend) -> None:
    found = await backend.tokenize(TokenizeRequest(model=MODEL, prompt=CHAT))
    events = await events_of(backend, request(MODEL, CHAT, max_tokens=1))

    assert isinstance(events[0], Started)
    assert events[0].prompt_tokens == found.count == await backend.count_tokens(MODEL, CHAT)


@pytest.mark.parametrize("text", [text for text in TEXTS if text])
async def test_what_was_a_text_becomes_it_again(backend: Backend, text: str) -> None:
    asked = TokenizeRequest(model=MODEL, prompt=TextPrompt(text=text), add_special_tokens=False)
    ids = (await backend.tokenize(asked)).ids or ()

    assert await backend.detokenize(DetokenizeRequest(model=MODEL, token_ids=ids)) == text


async def test_token_ids_are_their_own_answer(backend: Backend) -> None:
    found = await backend.tokenize(TokenizeRequest(model=MODEL, prompt=TokenPrompt(token_ids=[3, 1])))

    assert found.ids == (3, 1)


@pytest.mark.parametrize("token", [-1, 49_152, 1 << 40])
async def test_an_id_outside_the_vocabulary_is_refused(backend: Backend, token: int) -> None:
    with pytest.raises(InvalidParameter) as refused:
        await backend.detokenize(DetokenizeRequest(model=MODEL, token_ids=(1, token)))

    assert refused.value.param == "tokens"
