"""LiteLLM, kept from fetching anything.

It fetches pictures, documents and whole files that a conversation names, to send them on in another form, and asks
addresses for the size of a picture whose tokens it counts. `backends.pictures` lets no link through to it; here it
cannot fetch one, even where that is wrong: its own switch for downloads is off, its check of a URL refuses every one,
and its clients make no GET, whoever calls them. Calls to providers are POSTs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn

from backends.litellm import transport

NO_DOWNLOADS: Final = {"MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0"}
"""LiteLLM's documented switch, read when it is imported."""
_ASK_AGAIN: Final = frozenset({"azure_ai", "huggingface", "replicate", "sap"})
"""Providers whose answers are fetched from them, or who are asked where a model is. They name the address."""

_ASK_SERVERS: Final = (
    ("ollama.common_utils", "OllamaModelInfo"),
    ("ollama.completion.transformation", "OllamaConfig"),
    ("lemonade.chat.transformation", "LemonadeChatConfig"),
)
"""Who asks a server about a model to price an answer: at the wrong time, in the event loop, and without a deadline."""


class FetchRefused(Exception):
    """LiteLLM was about to fetch something. The message does not say what: it may be the caller's secret."""

    def __init__(self) -> None:
        super().__init__("nothing is fetched by this server")


def forbid(litellm: Any) -> None:
    """For the whole process; doing it twice changes nothing."""
    litellm.user_url_validation = True
    litellm.user_url_allowed_hosts = []
    urls: Any = importlib.import_module("litellm.litellm_core_utils.url_utils")

    def refuse(url: str) -> NoReturn:
        del url
        raise urls.SSRFError("nothing is fetched by this server")

    # `safe_get` and `async_safe_get` ask it before they resolve a name; everything that fetches for a caller uses them.
    urls.validate_url = refuse
    handlers: Any = importlib.import_module("litellm.llms.custom_httpx.http_handler")
    for handler in (handlers.HTTPHandler, handlers.AsyncHTTPHandler):
        if not hasattr(handler.get, "__wrapped__"):
            handler.get = _guarded(handler.get)
    for module, name in _ASK_SERVERS:
        getattr(importlib.import_module(f"litellm.llms.{module}"), name).get_model_info = _knows_nothing


def _knows_nothing(*_: Any, **__: Any) -> None:
    return None


def _guarded(get: Callable[..., Any]) -> Callable[..., Any]:
    """For both kinds of handlers: what it gives is awaited, or not, by whoever asked."""

    @wraps(get)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        connection = transport.current.get()
        if connection is None or connection.provider not in _ASK_AGAIN:
            raise FetchRefused
        return get(*args, **kwargs)

    return guarded
