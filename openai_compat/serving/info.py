"""`/v1/info`: the service as the catalogue of services sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

SERVICE_NAME: Final = "llm-inference"
SERVICE_TITLE: Final = "LLM inference"
SERVICE_VERSION: Final = "0.1.0"
SERVICE_DESCRIPTION: Final = "OpenAI-compatible text generation on llama.cpp, vLLM and LiteLLM."

FUNCTIONS: Final = (
    (
        "chat_completions",
        "POST",
        "/v1/chat/completions",
        "Answer a conversation, whole or as a stream.",
        True,
    ),
    ("completions", "POST", "/v1/completions", "Continue a raw prompt, whole or as a stream.", True),
    ("embeddings", "POST", "/v1/embeddings", "Turn texts into vectors.", False),
    ("rerank", "POST", "/v1/rerank", "Put documents in the order in which they answer a query.", False),
    ("score", "POST", "/v1/score", "Tell how well pairs of texts go together.", False),
    ("tokenize", "POST", "/tokenize", "Tell the tokens of a text or a conversation.", False),
    ("detokenize", "POST", "/detokenize", "Tell the text of tokens.", False),
    ("list_models", "GET", "/v1/models", "List the models, of all backends or of one.", False),
    ("get_model", "GET", "/v1/models/{id}", "Describe one model.", False),
    ("load_model", "POST", "/v1/models/load", "Load a model on a local backend.", True),
    ("unload_model", "POST", "/v1/models/unload", "Unload a model from a local backend.", False),
    ("list_backends", "GET", "/v1/backends", "List the enabled backends.", False),
    ("info", "GET", "/v1/info", "Describe this service.", False),
    ("health", "GET", "/health", "Tell the state of each backend.", False),
    ("ready", "GET", "/ready", "Tell whether new requests are taken.", False),
)
"""Name, method, path, what it does, whether it can stream."""


def describe_service(
    models: Sequence[dict[str, Any]], backends: Sequence[str], *, url: str | None = None
) -> dict[str, Any]:
    """`resource`, `models` (those of `GET /v1/models`) and `functions` (one per endpoint). `url` is where clients reach
    all of it, if that is known."""
    return {
        "resource": {
            "name": SERVICE_NAME,
            "title": SERVICE_TITLE,
            "type": "llm",
            "version": SERVICE_VERSION,
            "description": SERVICE_DESCRIPTION,
            "backends": list(backends),
            "openapi": "/openapi.json",
            **({} if url is None else {"url": url}),
        },
        "models": list(models),
        "functions": [
            {"name": name, "method": method, "path": path, "description": does, "streaming": streams}
            for name, method, path, does, streams in FUNCTIONS
        ],
    }
