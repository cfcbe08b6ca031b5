"""`/openapi.json`, written from the same tables that check the requests.

The routes are plain functions of a request, which cost a tenth of a framework-validated one and of which the
framework therefore knows nothing; this is where it is told.
"""

from __future__ import annotations

from typing import Any, Final

from models.card import FALLBACK_REASONS
from openai_compat.schemas.answers import SCHEMAS
from openai_compat.schemas.chat import CHAT
from openai_compat.schemas.completions import COMPLETIONS
from openai_compat.schemas.embeddings import EMBEDDINGS
from openai_compat.schemas.fields import Schema
from openai_compat.schemas.models import LOAD, UNLOAD
from openai_compat.schemas.rerank import RERANK, SCORE
from openai_compat.schemas.table import json_schema
from openai_compat.schemas.tokenize import DETOKENIZE, TOKENIZE
from openai_compat.serving.info import SERVICE_DESCRIPTION, SERVICE_TITLE, SERVICE_VERSION

_ERRORS: Final = {
    "400": "The backend is not available, or the model cannot do what a field asks.",
    "401": "No token, a malformed one or an unknown one.",
    "404": "No such model.",
    "408": "The body did not arrive in time.",
    "409": "A load of this model runs.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "The body is not what the schema says.",
    "429": "The rate limit, the caller's own concurrency limit or a spent budget; see Retry-After.",
    "500": "The service or the backend failed.",
    "501": "The backend cannot do this.",
    "502": "A remote server failed.",
    "503": "The concurrency limit, or the backend cannot serve now; see Retry-After.",
    "504": "A deadline passed.",
}
_POST_ERRORS: Final = tuple(status for status in _ERRORS if status != "409")
_GET_ERRORS: Final = ("401", "429")

_COMPLETION_HEADERS: Final[Schema] = {
    "x-llm-backend": {"description": "The backend that answered.", "schema": {"type": "string"}},
    "x-llm-queue-ms": {
        "description": "How long the request waited for its turn, here and in the backend.",
        "schema": {"type": "string"},
    },
    "x-llm-overhead-ms": {
        "description": "What the service itself took, without waiting and without the backend.",
        "schema": {"type": "string"},
    },
    "x-llm-fallback-reason": {
        "description": "Why another model answered than the one asked for.",
        "schema": {"type": "string", "enum": list(FALLBACK_REASONS)},
    },
    "x-llm-cost-usd": {
        "description": "What the answer cost, where that is known; not on streams.",
        "schema": {"type": "string"},
    },
}

_STRICT: Final[Schema] = {
    "name": "strict",
    "in": "query",
    "description": "1: an unknown field is a 422 instead of being named in x-llm-ignored.",
    "schema": {"type": "boolean", "default": False},
}
_BACKEND: Final[Schema] = {
    "name": "backend",
    "in": "query",
    "description": "Only the models of this backend.",
    "schema": {"type": "string"},
}
_ID: Final[Schema] = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "A model's id or alias; it may hold slashes.",
    "schema": {"type": "string"},
}


def openapi_document() -> Schema:
    """The whole document."""
    schemas = {
        **SCHEMAS,
        "ChatCompletionRequest": json_schema("ChatCompletionRequest", CHAT),
        "CompletionRequest": json_schema("CompletionRequest", COMPLETIONS),
        "EmbeddingRequest": json_schema("EmbeddingRequest", EMBEDDINGS),
        "RerankRequest": json_schema("RerankRequest", RERANK),
        "ScoreRequest": json_schema("ScoreRequest", SCORE),
        "TokenizeRequest": json_schema("TokenizeRequest", TOKENIZE),
        "DetokenizeRequest": json_schema("DetokenizeRequest", DETOKENIZE),
        "LoadRequest": json_schema("LoadRequest", LOAD),
        "UnloadRequest": json_schema("UnloadRequest", UNLOAD),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": SERVICE_TITLE, "version": SERVICE_VERSION, "description": SERVICE_DESCRIPTION},
        "paths": {
            "/v1/chat/completions": {
                "post": _post(
                    "Answer a conversation",
                    "ChatCompletionRequest",
                    _answer("ChatCompletion", "ChatCompletionChunk", headers=_COMPLETION_HEADERS),
                )
            },
            "/v1/completions": {
                "post": _post(
                    "Continue a prompt",
                    "CompletionRequest",
                    _answer("Completion", "CompletionChunk", headers=_COMPLETION_HEADERS),
                )
            },
            "/v1/embeddings": {"post": _post("Embed texts", "EmbeddingRequest", _answer("Embeddings"))},
            "/v1/rerank": {"post": _post("Rank documents", "RerankRequest", _answer("Ranking"))},
            "/v1/score": {"post": _post("Score pairs of texts", "ScoreRequest", _answer("Scores"))},
            "/tokenize": {"post": _post("Tokens of a text", "TokenizeRequest", _answer("Tokens"))},
            "/detokenize": {"post": _post("Text of tokens", "DetokenizeRequest", _answer("TokenText"))},
            "/v1/models": {"get": _get("List models", "ModelList", _BACKEND, errors=("400", *_GET_ERRORS))},
            "/v1/models/{id}": {
                "get": _get("Describe a model", "Model", _ID, errors=("400", "404", *_GET_ERRORS))
            },
            "/v1/models/load": {
                "post": _post("Load a model", "LoadRequest", _answer("ModelOutcome", "LoadProgress"))
            },
            "/v1/models/unload": {
                "post": _post("Unload a model", "UnloadRequest", _answer("ModelOutcome"), "409")
            },
            "/v1/backends": {"get": _get("List backends", "Backends")},
            "/v1/info": {"get": _get("Describe the service", "Info")},
            "/health": {"get": _get("Health of each backend", "Health", errors=(), public=True)},
            "/ready": {"get": _get("Readiness", "Ready", errors=("503",), public=True)},
            "/metrics": {
                "get": {
                    "summary": "Prometheus metrics",
                    "operationId": "metrics",
                    "security": [],
                    "responses": {
                        "200": {
                            "description": "OK",
                            "content": {"text/plain": {"schema": {"type": "string"}}},
                        }
                    },
                }
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(name: str, event: str | None = None, *, headers: Schema | None = None) -> Schema:
    content: dict[str, Any] = {"application/json": {"schema": _ref(name)}}
    if event is not None:
        content["text/event-stream"] = {"schema": _ref(event)}
    known = {
        "X-Request-ID": {"schema": {"type": "string"}},
        "x-llm-ignored": {
            "description": "Fields that were accepted and did nothing.",
            "schema": {"type": "string", "maxLength": 4096},
        },
    }
    return {"description": "OK", "content": content, "headers": {**known, **(headers or {})}}


def _errors(statuses: tuple[str, ...]) -> dict[str, Schema]:
    content = {"application/json": {"schema": _ref("Error")}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}


def _operation_id(summary: str) -> str:
    return summary.lower().replace(" ", "_")


def _post(summary: str, request: str, answer: Schema, *more_errors: str) -> Schema:
    return {
        "summary": summary,
        "operationId": _operation_id(summary),
        "parameters": [_STRICT],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(request)}}},
        "responses": {"200": answer, **_errors((*_POST_ERRORS, *more_errors))},
    }


def _get(
    summary: str,
    answer: str,
    *parameters: Schema,
    errors: tuple[str, ...] = _GET_ERRORS,
    public: bool = False,
) -> Schema:
    operation: Schema = {
        "summary": summary,
        "operationId": _operation_id(summary),
        "parameters": list(parameters),
        "responses": {"200": _answer(answer), **_errors(errors)},
    }
    if public:
        operation["security"] = []
    return operation
