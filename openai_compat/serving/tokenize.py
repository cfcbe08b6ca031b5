"""From a checked request about tokens to its answer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from backends.tokenizing import DetokenizeRequest, TokenizeRequest
from backends.types import ChatPrompt, Prompt, TextPrompt
from openai_compat.media.intake import has_pictures
from openai_compat.principals import Privacy
from openai_compat.schemas.limits import check_tools
from openai_compat.schemas.tokenize import DetokenizeBody, TokenizeBody
from openai_compat.serving.calls import Call
from openai_compat.serving.chat import template_kwargs
from openai_compat.serving.gateway import (
    Gateway,
    Target,
    privacy_for,
    refuse,
    require_capability,
    require_features,
)
from openai_compat.serving.messages import normalise
from openai_compat.serving.pictures import taken

_encode = msgspec.json.Encoder().encode


async def serve_tokenize(gateway: Gateway, asked: TokenizeBody, request: Request) -> Response:
    """The tokens of a prompt, as a completion of it would have them.

    Raises: BackendNotAvailable, UnknownModel, UnsupportedParameter, InvalidGrammar, what `Call.run` and
    `Backend.tokenize` raise.
    """
    target = _target(gateway, asked.model, asked.backend, asked.privacy, request)
    refuse(asked.refused, target.card)
    require_features(asked.needed, target)
    if asked.tools is not None:
        check_tools(asked.tools, enforced=False)
    prompt = _prompt(gateway, asked, target)
    if asked.messages is not None and has_pictures(asked.messages):
        seen = await taken(gateway.media, asked.messages, request.scope, request.receive)
        prompt = _prompt(gateway, replace(asked, messages=seen), target)
    wanted = TokenizeRequest(
        model=target.card.id,
        prompt=prompt,
        add_special_tokens=asked.add_special_tokens,
        with_strings=asked.with_strings,
    )
    # What is only counted has no marks of its own.
    idle = (
        ("add_special_tokens",) if target.kind == "litellm" and asked.add_special_tokens is not None else ()
    )
    call = Call(gateway, target, request, ())
    call.record.ignored += idle
    found = await call.run(partial(target.backend.tokenize, wanted))
    answer: dict[str, Any] = {
        "count": found.count,
        "max_model_len": found.context_length or target.card.context_length,
        "tokens": found.ids,
    }
    if asked.with_strings:
        answer["token_strs"] = found.strings
    if found.is_estimated:
        answer["is_estimated"] = True
    return call.answer(_encode({**answer, **_names(target)}), prompt_tokens=0)


async def serve_detokenize(gateway: Gateway, asked: DetokenizeBody, request: Request) -> Response:
    """The text of tokens. Raises: as `serve_tokenize`."""
    target = _target(gateway, asked.model, asked.backend, asked.privacy, request)
    wanted = DetokenizeRequest(model=target.card.id, token_ids=tuple(asked.token_ids))
    call = Call(gateway, target, request, ())
    text = await call.run(partial(target.backend.detokenize, wanted))
    return call.answer(_encode({"prompt": text, **_names(target)}), prompt_tokens=0)


def _target(
    gateway: Gateway, model: str | None, backend: str | None, privacy: Privacy, request: Request
) -> Target:
    kept = privacy_for(request.scope, privacy)
    if model is None:
        return gateway.resolve_default(backend, kept)
    return gateway.resolve(model, backend, kept)


def _prompt(gateway: Gateway, asked: TokenizeBody, target: Target) -> Prompt:
    if asked.messages is None:
        return TextPrompt(text=asked.text or "")
    card = target.card
    require_capability(card, "chat", what="chat")
    return ChatPrompt(
        messages=normalise(asked.messages, target),
        tools=asked.tools,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        template_kwargs=template_kwargs(gateway, asked.template_kwargs, target),
    )


def _names(target: Target) -> dict[str, str]:
    return {"model": target.card.id, "backend": target.kind}
