"""Which pictures of a conversation may go to a provider, and how.

A picture's URL is the caller's, and whoever fetches it does so from inside his own network. For many providers LiteLLM
fetches it in this process, and would reach what only this machine can see. Here nothing that a request names is
fetched: a link goes on only where the provider itself fetches it and LiteLLM passes it on untouched; everything else
has to come in the request. `no_fetch` keeps LiteLLM from fetching where this is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from backends.errors import InvalidParameter, UnsupportedParameter
from backends.litellm.deployment import Deployment

FETCH_THEMSELVES: Final = frozenset(
    {
        "anthropic",
        "azure",
        "deepinfra",
        "fireworks_ai",
        "groq",
        "hosted_vllm",
        "mistral",
        "nvidia_nim",
        "openai",
        "openrouter",
        "together_ai",
        "xai",
    }
)
"""Providers whose requests hold the link as it came. A test looks at what is sent to each."""
_ONLY_HTTPS: Final = frozenset({"anthropic"})
"""LiteLLM would fetch what is not encrypted, since the provider refuses it."""

_LINK: Final = re.compile(r"https?://[^\s\x00-\x20\x7f\\]+")
_DATA_HEAD: Final = re.compile(r"data:image/[a-z0-9.+-]+(?:;[a-z0-9-]+=[a-z0-9.+-]+)*;base64", re.IGNORECASE)
MAX_LINK_CHARS: Final = 8192


def own_messages(messages: list[dict[str, Any]], deployment: Deployment) -> list[dict[str, Any]]:
    """The messages, with nothing in their parts but what is known here: LiteLLM reads more keys than OpenAI's API has.

    Raises: UnsupportedParameter, InvalidParameter naming the part.
    """
    return [
        {**message, "content": _parts(message["content"], index, deployment)}
        if isinstance(message.get("content"), list)
        else message
        for index, message in enumerate(messages)
    ]


def _parts(parts: list[Any], index: int, deployment: Deployment) -> list[dict[str, Any]]:
    return [
        _part(part, f"messages[{index}].content[{position}]", deployment)
        for position, part in enumerate(parts)
    ]


def _part(part: Mapping[str, Any], where: str, deployment: Deployment) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": "text", "text": part[kind]}
    if kind != "image_url":
        raise UnsupportedParameter(f"{where}: {kind} parts are not passed on to clouds", param=where)
    where += ".image_url"
    image = part["image_url"]
    url = image.get("url") if isinstance(image, Mapping) else None
    _check(url, where, deployment.provider)
    own = {"url": url}
    if isinstance(image.get("detail"), str):
        own["detail"] = image["detail"]
    return {"type": "image_url", "image_url": own}


def _check(url: object, where: str, provider: str) -> None:
    if isinstance(url, str):
        head, _, data = url.partition(",")
        if _DATA_HEAD.fullmatch(head) and data and ":" not in data:
            return
        if len(url) <= MAX_LINK_CHARS and _LINK.fullmatch(url):
            _check_link(url, where, provider)
            return
    raise InvalidParameter(
        f"{where}: expected a data URL of a picture in base64 (data:image/png;base64,…) or an http(s) URL",
        param=where,
    )


def _check_link(url: str, where: str, provider: str) -> None:
    if provider not in FETCH_THEMSELVES:
        raise UnsupportedParameter(
            f"{where}: the provider {provider!r} fetches no pictures; send a data URL", param=where
        )
    if provider in _ONLY_HTTPS and not url.startswith("https://"):
        raise UnsupportedParameter(
            f"{where}: the provider {provider!r} fetches from https only; send a data URL", param=where
        )
