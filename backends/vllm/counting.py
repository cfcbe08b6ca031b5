"""How servers are asked for the size of a prompt: vLLM's and SGLang's `/tokenize`, which knows templates, and
llama-server's, which does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from backends.errors import UpstreamError
from backends.pictures import own_messages
from backends.tokenizing import TokenizeRequest, Tokens
from backends.types import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from backends.vllm.dialect import LLAMA_SERVER, Dialect

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Path and body to the answer's object."""


async def tokenize(ask: Ask, dialect: Dialect, served_name: str, request: TokenizeRequest) -> Tokens:
    """Raises: what `ask` raises; UpstreamError for an answer without tokens."""
    prompt = request.prompt
    if isinstance(prompt, TokenPrompt):
        return Tokens(len(prompt.token_ids), tuple(prompt.token_ids))
    if dialect is LLAMA_SERVER:
        return await _ask_llama_server(ask, served_name, request)
    body: dict[str, Any] = (
        _conversation(served_name, prompt) if isinstance(prompt, ChatPrompt) else {"prompt": prompt.text}
    )
    body["model"] = served_name
    if request.add_special_tokens is not None:
        body["add_special_tokens"] = request.add_special_tokens
    if request.with_strings:
        body["return_token_strs"] = True
    said = await ask("/tokenize", body)
    context = said.get("max_model_len")
    strings = said.get("token_strs") if request.with_strings else None
    return _tokens(said.get("tokens"), strings, context if type(context) is int and context > 0 else None)


async def _ask_llama_server(ask: Ask, served_name: str, request: TokenizeRequest) -> Tokens:
    prompt, add_special = request.prompt, request.add_special_tokens
    if isinstance(prompt, ChatPrompt):
        rendered = await ask("/apply-template", _conversation(served_name, prompt))
        text = str(rendered.get("prompt", ""))
    else:
        assert isinstance(prompt, TextPrompt)
        text = prompt.text
    body = {"content": text, "add_special": add_special is not False, "parse_special": True}
    if request.with_strings:
        body["with_pieces"] = True
    tokens = (await ask("/tokenize", body)).get("tokens")
    if not request.with_strings or not isinstance(tokens, list):
        return _tokens(tokens, None, None)
    pieces = [token for token in tokens if isinstance(token, dict)]
    strings = [_piece(token.get("piece")) for token in pieces]
    return _tokens([token.get("id") for token in pieces], strings, None)


def _piece(piece: object) -> str:
    """llama-server writes bytes that are no character as numbers."""
    if isinstance(piece, list):
        return bytes(b for b in piece if type(b) is int and 0 <= b < 256).decode("utf-8", "replace")
    return str(piece)


def _tokens(ids: object, strings: object, context_length: int | None) -> Tokens:
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise UpstreamError("The server told no tokens")
    if strings is not None and (not isinstance(strings, list) or len(strings) != len(ids)):
        raise UpstreamError("The server told no text of its tokens")
    told = None if strings is None else tuple(map(str, strings))
    return Tokens(len(ids), tuple(ids), told, context_length)


async def detokenize(ask: Ask, dialect: Dialect, served_name: str, token_ids: Sequence[int]) -> str:
    """Raises: what `ask` raises; UpstreamError for an answer without a text."""
    name = "content" if dialect is LLAMA_SERVER else "prompt"
    said = await ask("/detokenize", {"model": served_name, "tokens": list(token_ids)})
    text = said.get(name)
    if not isinstance(text, str):
        raise UpstreamError("The server told no text")
    return text


async def count_tokens(ask: Ask, dialect: Dialect, served_name: str, prompt: Prompt) -> int:
    """Raises: what `ask` raises; UpstreamError for an answer without a number."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.token_ids)
    if dialect is LLAMA_SERVER and isinstance(prompt, ChatPrompt):
        rendered = await ask("/apply-template", _conversation(served_name, prompt))
        prompt = TextPrompt(text=str(rendered.get("prompt", "")))
    if isinstance(prompt, ChatPrompt):
        body = _conversation(served_name, prompt)
    elif dialect is LLAMA_SERVER:
        body = {"content": prompt.text, "add_special": True}
    else:
        body = {"model": served_name, "prompt": prompt.text}
    said = await ask("/tokenize", body)
    count, tokens = said.get("count"), said.get("tokens")
    if type(count) is int and count >= 0:
        return count
    if isinstance(tokens, list):
        return len(tokens)
    raise UpstreamError("The server counted no tokens")


def _conversation(served_name: str, prompt: ChatPrompt) -> dict[str, Any]:
    body: dict[str, Any] = {"model": served_name, "messages": own_messages(prompt.messages)}
    if prompt.tools:
        body["tools"] = prompt.tools
    if prompt.template_kwargs:
        body["chat_template_kwargs"] = prompt.template_kwargs
    if prompt.continue_final_message:
        body["continue_final_message"] = True
    if prompt.continue_final_message or not prompt.add_generation_prompt:
        body["add_generation_prompt"] = False
    return body
