"""`/tokenize` and `/detokenize`: vLLM's form, whatever the backend."""

from __future__ import annotations

from typing import Any

import pytest
from typing_extensions import override

from backends.errors import InvalidParameter
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import ChatPrompt, Prompt, TextPrompt
from models.card import ModelCard
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.wire import HELLO, Reply, call, card, make_app

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class TokenBackend(ScriptedBackend):
    """Tells three tokens of everything, or what it is given."""

    def __init__(self, tokens: Tokens | None = None, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens = tokens or Tokens(3, (5, 6, 7), None, 2048)
        self.asked: list[TokenizeRequest] = []

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        self.asked.append(request)
        return self.tokens

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        if max(request.token_ids, default=0) > 100:
            raise InvalidParameter("tokens: token id 101 is outside the model's vocabulary", param="tokens")
        return "".join(chr(64 + token) for token in request.token_ids)


async def tokenize(backend: Any, body: dict[str, Any], **parts: Any) -> Reply:
    return await call(make_app(backend, **parts), "POST", "/tokenize", body)


async def detokenize(backend: Any, body: dict[str, Any]) -> Reply:
    return await call(make_app(backend), "POST", "/detokenize", body)


def asked_of(backend: TokenBackend) -> Prompt:
    (request,) = backend.asked
    return request.prompt


async def test_the_tokens_of_a_text():
    backend = TokenBackend()

    reply = await tokenize(backend, {"model": "tiny", "prompt": "one two three"})

    assert reply.status == 200
    assert reply.json == {
        "count": 3,
        "max_model_len": 2048,
        "tokens": [5, 6, 7],
        "model": "tiny",
        "backend": "fake",
    }
    assert reply.headers["x-llm-backend"] == "fake"
    assert asked_of(backend) == TextPrompt(text="one two three")


async def test_a_conversation_is_asked_about_as_a_chat_would_send_it():
    backend = TokenBackend(features=frozenset({"tools"}))
    body = {**HELLO, "tools": [TOOL], "chat_template_kwargs": {"a": 1}, "add_generation_prompt": False}

    reply = await tokenize(backend, body)

    assert reply.status == 200
    assert asked_of(backend) == ChatPrompt(
        messages=[{"role": "user", "content": "Hi"}],
        tools=[TOOL],
        add_generation_prompt=False,
        template_kwargs={"a": 1},
    )


async def test_a_final_message_may_be_left_open():
    backend = TokenBackend()
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]

    await tokenize(backend, {"model": "tiny", "messages": messages, "continue_final_message": True})

    prompt = asked_of(backend)
    assert isinstance(prompt, ChatPrompt)
    assert prompt.continue_final_message
    assert not prompt.add_generation_prompt


async def test_the_text_of_each_token_is_told_when_asked():
    backend = TokenBackend(Tokens(2, (1, 2), ("a", "Ġb"), 8))

    reply = await tokenize(backend, {"model": "tiny", "prompt": "a b", "return_token_strs": True})

    assert reply.json["token_strs"] == ["a", "Ġb"]
    assert backend.asked[0].with_strings


@pytest.mark.parametrize("value", [True, False, None])
async def test_special_tokens_are_the_callers_choice(value: bool | None):
    backend = TokenBackend()

    await tokenize(backend, {"model": "tiny", "prompt": "a", "add_special_tokens": value})

    assert backend.asked[0].add_special_tokens is value


async def test_an_estimate_is_marked():
    reply = await tokenize(
        TokenBackend(Tokens(9, is_estimated=True)),
        {"model": "tiny", "prompt": "a"},
        cards=[card(context_length=100)],
    )

    assert reply.json["tokens"] is None
    assert reply.json["is_estimated"] is True
    assert (reply.json["count"], reply.json["max_model_len"]) == (9, 100)


async def test_without_a_model_the_default_one_is_asked():
    assert (await tokenize(TokenBackend(), {"prompt": "a"})).json["model"] == "tiny"


async def test_an_empty_text_has_tokens_too():
    assert (await tokenize(TokenBackend(), {"model": "tiny", "prompt": ""})).status == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": "a", "messages": HELLO["messages"]}, "messages"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "tools": [TOOL]}, "tools"),
        ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ({**HELLO, "continue_final_message": True}, "continue_final_message"),
        ({**HELLO, "messages": [{"role": "user", "content": ""}]}, "messages.0.content"),
        ({"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ({"prompt": "a", "api_key": "x"}, "api_key"),
    ],
)
async def test_a_body_of_another_shape_is_a_422(body: dict[str, Any], param: str):
    reply = await tokenize(TokenBackend(), {"model": "tiny", **body})

    assert (reply.status, reply.error["code"], reply.error["param"]) == (422, "validation_error", param)


@pytest.mark.parametrize(
    ("fields", "param"), [({"chat_template": "x"}, "chat_template"), ({"tools": [TOOL]}, "tools")]
)
async def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str):
    reply = await tokenize(TokenBackend(), {**HELLO, **fields})

    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unsupported_parameter", param)


async def test_a_model_without_chat_has_no_tokens_of_a_conversation():
    only_text: list[ModelCard] = [card(capabilities=["completion"])]

    assert (await tokenize(TokenBackend(), HELLO, cards=only_text)).status == 400


async def test_an_unknown_model_is_a_404():
    reply = await tokenize(TokenBackend(), {"model": "none", "prompt": "a"})

    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_a_backend_that_tells_no_tokens_says_so():
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        reply = await call(make_app(ScriptedBackend()), "POST", path, body)

        assert (reply.status, reply.error["code"]) == (501, "not_implemented")


async def test_the_text_of_tokens():
    reply = await detokenize(TokenBackend(), {"model": "tiny", "tokens": [1, 2, 3]})

    assert reply.json == {"prompt": "ABC", "model": "tiny", "backend": "fake"}


async def test_no_tokens_are_no_text():
    assert (await detokenize(TokenBackend(), {"model": "tiny", "tokens": []})).json["prompt"] == ""


@pytest.mark.parametrize("tokens", [None, "1", [1.5], [-1], ["a"], [True], {}, [1 << 31]])
async def test_tokens_of_another_shape_are_a_422(tokens: Any):
    reply = await detokenize(TokenBackend(), {"model": "tiny", "tokens": tokens})

    assert (reply.status, reply.error["code"]) == (422, "validation_error")


async def test_a_token_outside_the_vocabulary_is_a_400():
    reply = await detokenize(TokenBackend(), {"model": "tiny", "tokens": [101]})

    assert (reply.status, reply.error["param"]) == (400, "tokens")


async def test_both_need_a_token_where_the_service_does():
    app = make_app(TokenBackend(), api_tokens=(b"secret",))
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert (await call(app, "POST", path, body)).status == 401
        allowed = await call(app, "POST", path, body, headers={"authorization": "Bearer secret"})
        assert allowed.status == 200


async def test_an_unknown_field_is_named():
    reply = await tokenize(TokenBackend(), {"prompt": "a", "extra": 1})

    assert reply.headers["x-llm-ignored"] == "extra"
