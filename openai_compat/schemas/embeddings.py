"""`POST /v1/embeddings`: its fields, and the request they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from openai_compat.principals import Privacy
from openai_compat.schemas.completions import PromptKind
from openai_compat.schemas.fields import Integer, OneOf, Text
from openai_compat.schemas.problems import Problems
from openai_compat.schemas.receipt import RECEIPT, kept_for_receipt
from openai_compat.schemas.table import PRIVACY, ROUTING, Field, Table, check_body, harmless

MAX_INPUTS: Final = 2048
"""As in OpenAI's API."""
MAX_DIMENSIONS: Final = 65_536
"""Beyond any model's, so that the model's own limit speaks first."""

EMBEDDINGS: Final[Table] = {
    "input": Field(PromptKind(max_prompts=MAX_INPUTS), "Text or texts, or token ids.", required=True),
    "model": Field(Text(min_length=1), "A model of GET /v1/models, by id or alias.", required=True),
    "backend": Field(Text(min_length=1), "Serve on this backend: litellm, vllm or llamacpp."),
    "encoding_format": Field(OneOf("float", "base64"), "How vectors are written.", default="float"),
    "dimensions": Field(
        Integer(1, MAX_DIMENSIONS), "Length of the vectors: cut, and brought back to length 1."
    ),
    "user": harmless(Text(), "An end user's id."),
    "privacy": PRIVACY,
    "receipt": RECEIPT,
    **ROUTING,
}


@dataclass(frozen=True, slots=True)
class EmbeddingBody:
    """A body that met the schema. `inputs`: texts or token ids."""

    inputs: list[str | list[int]]
    model: str
    backend: str | None
    is_base64: bool
    dimensions: int | None
    ignored: tuple[str, ...]
    privacy: Privacy = "any"
    receipt: Mapping[str, Any] | None = None
    """What a receipt is to repeat; None: none is wanted."""


def read_embedding(body: Mapping[str, Any], *, strict: bool = False) -> EmbeddingBody:
    """Check a body. Raises: ValidationFailed with every problem found."""
    problems = Problems()
    checked = check_body(body, EMBEDDINGS, problems, strict=strict)
    problems.raise_if_any()
    values = checked.values
    return EmbeddingBody(
        inputs=list(values["input"]),
        model=values["model"],
        backend=values.get("backend"),
        is_base64=values.get("encoding_format") == "base64",
        dimensions=values.get("dimensions"),
        ignored=tuple(checked.ignored),
        privacy=values.get("privacy", "any"),
        receipt=kept_for_receipt(body, checked),
    )
