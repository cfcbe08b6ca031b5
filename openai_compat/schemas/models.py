"""`POST /v1/models/load` and `/v1/models/unload`, `?backend=`, and the basics of `/v1/embeddings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from openai_compat.schemas.completions import PromptKind
from openai_compat.schemas.fields import Boolean, Integer, OneOf, Text
from openai_compat.schemas.problems import Problems
from openai_compat.schemas.table import ROUTING, Field, Table, check_body, harmless

LOAD: Final[Table] = {
    "model": Field(Text(min_length=1), "A model of the catalogue, by id or alias.", required=True),
    "backend": Field(Text(min_length=1), "The backend to load it on.", required=True),
    "stream": Field(Boolean(), "Answer with server-sent events that tell the progress.", default=False),
    **ROUTING,
}

UNLOAD: Final[Table] = {
    "model": Field(Text(min_length=1), "A model of the catalogue, by id or alias.", required=True),
    "backend": Field(Text(min_length=1), "The backend to unload it from.", required=True),
    **ROUTING,
}

EMBEDDINGS: Final[Table] = {
    "input": Field(PromptKind(), "Text or texts, or token ids.", required=True),
    "model": Field(Text(min_length=1), "A model of GET /v1/models, by id or alias.", required=True),
    "backend": Field(Text(min_length=1), "Serve on this backend: litellm, vllm or llamacpp."),
    "encoding_format": Field(OneOf("float", "base64"), "How vectors are written.", default="float"),
    "dimensions": Field(Integer(1, 65_536), "Length of the vectors."),
    "user": harmless(Text(), "An end user's id."),
    **ROUTING,
}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model on a backend."""

    model: str
    backend: str | None
    stream: bool
    ignored: tuple[str, ...]


def read_model_request(body: Mapping[str, Any], table: Table, *, strict: bool = False) -> ModelRequest:
    """Check a body against `LOAD`, `UNLOAD` or `EMBEDDINGS`. Raises: ValidationFailed."""
    problems = Problems()
    checked = check_body(body, table, problems, strict=strict)
    problems.raise_if_any()
    values = checked.values
    return ModelRequest(
        model=values["model"],
        backend=values.get("backend"),
        stream=values.get("stream", False),
        ignored=tuple(checked.ignored),
    )
