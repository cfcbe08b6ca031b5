"""LiteLLM's backend in front of providers on loopback, for the tests of it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.litellm.backend import LiteLLMBackend
from backends.litellm.patience import Patience
from models.card import ModelCard, RemoteSource
from models.catalogue import Catalogue

KEYS = {
    "OPENAI_API_KEY": "sk-openai-0123456789abcdef",
    "ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef",
    "OPENROUTER_API_KEY": "sk-or-v1-0123456789abcdef",
}
needs_litellm = [
    pytest.mark.engine,
    pytest.mark.timeout(120),  # the first of them imports LiteLLM
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="LiteLLM is not installed"),
    # LiteLLM imports parts of itself when a call first needs them, and they use what others have deprecated.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
]
QUICK = Patience(request_timeout_s=20.0, idle_timeout_s=5.0, max_retries=0)


def environment(monkeypatch: pytest.MonkeyPatch, url: str, *, keys: Mapping[str, str] = KEYS) -> None:
    """The variables that send every provider's calls to `url`, with these keys and no others."""
    for name in (*KEYS, "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    monkeypatch.setenv("OPENAI_API_BASE", f"{url}/v1")
    monkeypatch.setenv("ANTHROPIC_API_BASE", url)
    monkeypatch.setenv("OPENROUTER_API_BASE", f"{url}/api/v1")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def a_card(card_id: str, remote: str, **fields: Any) -> ModelCard:
    return ModelCard(id=card_id, backend="litellm", sources={"litellm": RemoteSource(name=remote)}, **fields)


@asynccontextmanager
async def a_backend(
    *cards: ModelCard, patience: Patience = QUICK, **options: Any
) -> AsyncIterator[LiteLLMBackend]:
    backend = LiteLLMBackend(Catalogue(cards), os.environ, patience, **options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()
