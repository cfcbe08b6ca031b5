"""How servers are asked for the size of a prompt: vLLM's and SGLang's `/tokenize`, which knows templates, and
llama-server's, which does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from backends.errors import UpstreamError
from backends.types import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from backends.vllm.dialect import LLAMA_SERVER, Dialect

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Path and body to the answer's object."""


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
    body: dict[str, Any] = {"model": served_name, "messages": prompt.messages}
    if prompt.tools:
        body["tools"] = prompt.tools
    if prompt.template_kwargs:
        body["chat_template_kwargs"] = prompt.template_kwargs
    if prompt.continue_final_message:
        body["continue_final_message"] = True
    if prompt.continue_final_message or not prompt.add_generation_prompt:
        body["add_generation_prompt"] = False
    return body
