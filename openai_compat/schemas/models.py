"""`POST /v1/models/load` and `/v1/models/unload`, and `?backend=`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from openai_compat.schemas.fields import Boolean, Text
from openai_compat.schemas.problems import Problems
from openai_compat.schemas.table import ROUTING, Field, Table, check_body

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


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model on a backend."""

    model: str
    backend: str | None
    stream: bool
    ignored: tuple[str, ...]


def read_model_request(body: Mapping[str, Any], table: Table, *, strict: bool = False) -> ModelRequest:
    """Check a body against `LOAD` or `UNLOAD`. Raises: ValidationFailed."""
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
