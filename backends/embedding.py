"""Embeddings and scores: what is asked of a backend, and what it answers. Immutable, as everything in `backends.types`.

A request is answered whole or not at all; there are no events.
"""

from __future__ import annotations

import msgspec

from backends.provenance import Provenance
from backends.types import TextPrompt, TokenPrompt

EmbeddingInput = TextPrompt | TokenPrompt


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted request for vectors, one per input."""

    request_id: str
    model: str
    """The card's id (never an alias)."""
    inputs: tuple[EmbeddingInput, ...]
    """At least one, and none of them empty."""
    dimensions: int | None = None
    """Length of the vectors: the first so many numbers, brought back to length 1. None: the model's own."""
    wants_provenance: bool = False
    """As of `GenerationRequest`."""


class Embeddings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The vectors in the inputs' order: little-endian float32, of length 1."""

    vectors: tuple[bytes, ...]
    prompt_tokens: int
    """Of all inputs together."""
    cost_usd: float | None = None
    """None where nobody takes money, or nobody knows the price."""
    provenance: Provenance | None = None
    """Where the request wants it."""


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted request for scores: how well each document answers the query."""

    request_id: str
    model: str
    query: str
    documents: tuple[str, ...]
    """At least one, and none of them empty."""
    top_n: int | None = None
    """Only the best so many; None: all."""


class Score(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`index`: the document's place in the request. `score`: higher is better; its range is the model's."""

    index: int
    score: float


class Ranking(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The scores, best first."""

    scores: tuple[Score, ...]
    prompt_tokens: int
    cost_usd: float | None = None
    """As of embeddings."""
