"""JSON schemas of what the service answers, for `/openapi.json`."""

from __future__ import annotations

from typing import Any, Final

from openai_compat.schemas.fields import Schema


def _object(properties: dict[str, Any], *optional: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_STRING: Final[Schema] = {"type": "string"}
_TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
_INTEGER: Final[Schema] = {"type": "integer"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Schema] = {"type": "number"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_REASON: Final[Schema] = {
    "type": ["string", "null"],
    "enum": ["stop", "length", "tool_calls", "content_filter", None],
}
_CREATED: Final[Schema] = {"type": "integer", "description": "Unix seconds; the same in every chunk."}

USAGE: Final = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        "completion_tokens_details": _object({"reasoning_tokens": _COUNT}),
        "is_estimated": {"const": True, "description": "The server did not say; counted by us."},
        "cost_usd": {"type": "number", "description": "What the provider takes for it, where that is known."},
    },
    "completion_tokens_details",
    "is_estimated",
    "cost_usd",
)

_TOKEN: Final = {
    "token": _STRING,
    "logprob": {"type": "number", "minimum": -9999, "maximum": 0},
    "bytes": _list({"type": "integer", "minimum": 0, "maximum": 255}),
}
_CHAT_LOGPROBS: Final = _object(
    {"content": _list(_object({**_TOKEN, "top_logprobs": _list(_object(_TOKEN))}))}
)
_TEXT_LOGPROBS: Final = _object(
    {
        "tokens": _list(_STRING),
        "token_logprobs": _list({"type": ["number", "null"]}),
        "top_logprobs": _list({"type": ["object", "null"], "additionalProperties": _NUMBER}),
        "text_offset": _list(_COUNT),
    }
)


_REASONING: Final = {
    "reasoning_content": {"type": "string", "description": "What the model thought, apart from its answer."},
    "reasoning": {"type": "string", "description": "The same, under its other name."},
}
_FUNCTION: Final = {"name": _STRING, "arguments": {"type": "string", "description": "JSON of an object."}}
_CALL: Final = {"id": _STRING, "type": {"type": "string", "const": "function"}}
_MESSAGE: Final = _object(
    {
        "role": {"type": "string", "const": "assistant"},
        "content": {**_TEXT_OR_NULL, "description": "Null where there are only tool calls."},
        **_REASONING,
        "tool_calls": _list(_object({**_CALL, "function": _object(_FUNCTION)})),
    },
    *_REASONING,
    "tool_calls",
)
_DELTA: Final = _object(
    {
        "role": _STRING,
        "content": _STRING,
        **_REASONING,
        "tool_calls": {
            **_list(_object({"index": _COUNT, **_CALL, "function": _object(_FUNCTION, "name")}, *_CALL)),
            "description": "The first delta of a call has its id, type and name; the others go on with arguments.",
        },
    },
    "role",
    "content",
    *_REASONING,
    "tool_calls",
)


_RECEIPT: Final[Schema] = {
    "type": "object",
    "description": "How the answer was made, where the request has `receipt: true`; docs/receipts.md has its members.",
    "properties": {"version": _INTEGER, "sha256": _STRING},
    "additionalProperties": True,
}


def _completion(object_name: str, choice: Schema) -> Schema:
    return _object(
        {
            "id": _STRING,
            "object": {"type": "string", "const": object_name},
            "created": _CREATED,
            "model": {"type": "string", "description": "The card's id, never an alias."},
            "choices": _list(choice),
            "usage": USAGE,
            "backend": _STRING,
            "llm_receipt": _RECEIPT,
        },
        "llm_receipt",
    )


def _chunk(object_name: str, choice: Schema) -> Schema:
    return _object(
        {
            "id": _STRING,
            "object": {"type": "string", "const": object_name},
            "created": _CREATED,
            "model": _STRING,
            "choices": {**_list(choice), "description": "Empty in the usage chunk."},
            "usage": {**USAGE, "description": "In the last chunk, when stream_options.include_usage asks."},
            "llm_receipt": {**_RECEIPT, "description": "In the last chunk, where the request asks for one."},
        },
        "usage",
        "llm_receipt",
    )


_TEXT_CHOICE: Final = _object(
    {"index": _COUNT, "text": _STRING, "finish_reason": _REASON, "logprobs": _TEXT_LOGPROBS}, "logprobs"
)

_WHOLE_USAGE: Final = _object({"prompt_tokens": _COUNT, "total_tokens": _COUNT})

SCHEMAS: Final[dict[str, Schema]] = {
    "ChatCompletion": _completion(
        "chat.completion",
        _object(
            {
                "index": _COUNT,
                "message": _MESSAGE,
                "finish_reason": _REASON,
                "logprobs": _CHAT_LOGPROBS,
            },
            "logprobs",
        ),
    ),
    "ChatCompletionChunk": _chunk(
        "chat.completion.chunk",
        _object(
            {
                "index": _COUNT,
                "delta": _DELTA,
                "finish_reason": _REASON,
                "logprobs": _CHAT_LOGPROBS,
            },
            "logprobs",
        ),
    ),
    "Completion": _completion("text_completion", _TEXT_CHOICE),
    "CompletionChunk": _chunk("text_completion", _TEXT_CHOICE),
    "Embeddings": _object(
        {
            "object": {"type": "string", "const": "list"},
            "data": _list(
                _object(
                    {
                        "object": {"type": "string", "const": "embedding"},
                        "index": _COUNT,
                        "embedding": {
                            "description": "Numbers, or with encoding_format base64 little-endian float32.",
                            "anyOf": [_list({"type": "number"}), {"type": "string", "format": "byte"}],
                        },
                    }
                )
            ),
            "model": _STRING,
            "usage": _WHOLE_USAGE,
            "backend": _STRING,
            "llm_receipt": _RECEIPT,
        },
        "llm_receipt",
    ),
    "Ranking": _object(
        {
            "id": _STRING,
            "model": _STRING,
            "results": _list(
                _object(
                    {
                        "index": {**_COUNT, "description": "The document's place in the request."},
                        "relevance_score": {"type": "number"},
                        "document": _object({"text": _STRING}),
                    },
                    "document",
                )
            ),
            "usage": _WHOLE_USAGE,
            "backend": _STRING,
        }
    ),
    "Scores": _object(
        {
            "id": _STRING,
            "object": {"type": "string", "const": "list"},
            "created": _CREATED,
            "model": _STRING,
            "data": _list(
                _object(
                    {
                        "index": _COUNT,
                        "object": {"type": "string", "const": "score"},
                        "score": {"type": "number"},
                    }
                )
            ),
            "usage": _WHOLE_USAGE,
            "backend": _STRING,
        }
    ),
    "Tokens": _object(
        {
            "count": _COUNT,
            "max_model_len": {"type": ["integer", "null"], "description": "Tokens; null where unknown."},
            "tokens": {"type": ["array", "null"], "items": _COUNT, "description": "Null where only counted."},
            "token_strs": _list(_STRING),
            "is_estimated": {"const": True, "description": "The provider does not say; counted by us."},
            "model": _STRING,
            "backend": _STRING,
        },
        "token_strs",
        "is_estimated",
    ),
    "TokenText": _object({"prompt": _STRING, "model": _STRING, "backend": _STRING}),
    "Model": _object(
        {
            "id": _STRING,
            "object": {"type": "string", "const": "model"},
            "created": _INTEGER,
            "owned_by": _STRING,
            "backend": _STRING,
            "loaded": _BOOLEAN,
            "context_length": {"type": ["integer", "null"], "description": "Tokens; null until known."},
            "capabilities": _list(_STRING),
            "aliases": _list(_STRING),
        },
        "aliases",
    ),
    "ModelList": _object(
        {
            "object": {"type": "string", "const": "list"},
            "data": _list({"$ref": "#/components/schemas/Model"}),
        }
    ),
    "ModelOutcome": _object({"success": _BOOLEAN, "model": _STRING, "backend": _STRING, "message": _STRING}),
    "LoadProgress": _object(
        {
            "phase": {"type": "string", "enum": ["waiting", "fetching", "loading", "ready"]},
            "done_bytes": _COUNT,
            "total_bytes": _COUNT,
            "fraction": {"type": "number", "minimum": 0, "maximum": 1},
        }
    ),
    "Backends": _object({"backends": _list(_STRING)}),
    "Health": _object(
        {
            "status": {"type": "string", "enum": ["healthy", "degraded", "unhealthy"]},
            "backends": _list(_object({"name": _STRING, "healthy": _BOOLEAN, "message": _TEXT_OR_NULL})),
        }
    ),
    "Ready": _object({"ready": _BOOLEAN}),
    "Info": _object(
        {
            "resource": {"type": "object"},
            "models": _list({"$ref": "#/components/schemas/Model"}),
            "functions": _list(
                _object(
                    {
                        "name": _STRING,
                        "method": _STRING,
                        "path": _STRING,
                        "description": _STRING,
                        "streaming": _BOOLEAN,
                    }
                )
            ),
        }
    ),
    "Error": _object(
        {
            "detail": {
                "description": "A sentence; for 401 an object; for 422 a list of problems.",
                "anyOf": [
                    _STRING,
                    _object({"error": _STRING, "message": _STRING}),
                    _list(
                        _object(
                            {
                                "type": _STRING,
                                "loc": _list({"type": ["string", "integer"]}),
                                "msg": _STRING,
                                "input": {},
                            }
                        )
                    ),
                ],
            },
            "error": _object(
                {
                    "message": _STRING,
                    "type": _STRING,
                    "param": _TEXT_OR_NULL,
                    "code": _TEXT_OR_NULL,
                    "prompt_tokens": _COUNT,
                    "context_length": _COUNT,
                },
                "prompt_tokens",
                "context_length",
            ),
        }
    ),
}
