"""How vLLM's servers and llama-server are asked for tokens."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import UpstreamError
from backends.tokenizing import TokenizeRequest, Tokens
from backends.types import ChatPrompt, TextPrompt, TokenPrompt
from backends.vllm.counting import detokenize, tokenize
from backends.vllm.dialect import LLAMA_SERVER, VLLM

CHAT = ChatPrompt(messages=[{"role": "user", "content": "Hi"}])


class Server:
    """Answers by path, and remembers what it was asked."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body))
        return self._answers[path.strip("/").replace("-", "_")]


def about(prompt: Any, **fields: Any) -> TokenizeRequest:
    return TokenizeRequest(model="m", prompt=prompt, **fields)


async def test_vllm_is_asked_in_its_own_words():
    server = Server(tokenize={"count": 2, "max_model_len": 64, "tokens": [4, 5], "token_strs": ["a", "b"]})

    found = await tokenize(
        server, VLLM, "served", about(TextPrompt(text="ab"), add_special_tokens=False, with_strings=True)
    )

    assert found == Tokens(2, (4, 5), ("a", "b"), 64)
    assert server.asked == [
        (
            "/tokenize",
            {"prompt": "ab", "model": "served", "add_special_tokens": False, "return_token_strs": True},
        )
    ]


async def test_vllms_own_default_decides_about_special_tokens():
    server = Server(tokenize={"tokens": [4]})

    assert await tokenize(server, VLLM, "served", about(CHAT)) == Tokens(1, (4,))
    assert server.asked == [("/tokenize", {"model": "served", "messages": CHAT.messages})]


async def test_llama_server_renders_first():
    server = Server(
        apply_template={"prompt": "<user>Hi"},
        tokenize={"tokens": [{"id": 4, "piece": "H"}, {"id": 5, "piece": [255]}]},
    )

    found = await tokenize(server, LLAMA_SERVER, "served", about(CHAT, with_strings=True))

    assert found == Tokens(2, (4, 5), ("H", "\ufffd"))
    assert server.asked[1][1]["content"] == "<user>Hi"


async def test_token_ids_are_their_own_answer():
    assert await tokenize(Server(), VLLM, "served", about(TokenPrompt(token_ids=[1, 2]))) == Tokens(2, (1, 2))


@pytest.mark.parametrize(("dialect", "answer"), [(VLLM, {"prompt": "ab"}), (LLAMA_SERVER, {"content": "ab"})])
async def test_a_text_is_read_where_each_server_puts_it(dialect: Any, answer: dict[str, Any]):
    server = Server(detokenize=answer)

    assert await detokenize(server, dialect, "served", (4, 5)) == "ab"
    assert server.asked == [("/detokenize", {"model": "served", "tokens": [4, 5]})]


@pytest.mark.parametrize(
    "answer", [{}, {"tokens": "4"}, {"tokens": [None]}, {"tokens": [4], "token_strs": []}, {"tokens": [True]}]
)
async def test_an_answer_without_tokens_is_the_servers_fault(answer: dict[str, Any]):
    with pytest.raises(UpstreamError):
        await tokenize(
            Server(tokenize=answer), VLLM, "served", about(TextPrompt(text="a"), with_strings=True)
        )


async def test_an_answer_without_a_text_is_the_servers_fault():
    with pytest.raises(UpstreamError):
        await detokenize(Server(detokenize={"text": "a"}), VLLM, "served", (4,))
