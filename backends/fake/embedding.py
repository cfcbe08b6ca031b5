"""Vectors without weights: a text's words, hashed into a few directions.

The same text gives the same vector, and texts that share words lie closer together than others.
"""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from typing_extensions import override

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest, Score
from backends.errors import ContextLengthExceeded, InvalidParameter, UnsupportedParameter
from backends.fake import tokens
from backends.fake.provenance import provenance_of
from backends.loader import LoadedModel, refused
from backends.types import EventBatch, GenerationRequest, Prompt, TextPrompt, TokenPrompt

DIMENSIONS: Final = 64


class FakeEmbeddingModel(LoadedModel):
    """Embeds and ranks at once, on the event loop."""

    def __init__(self, card_id: str, *, context_length: int, memory_bytes: int = 0) -> None:
        self.card_id = card_id
        self.context_length = context_length
        self.memory_bytes = memory_bytes

    @property
    @override
    def running(self) -> int:
        return 0

    @property
    @override
    def waiting(self) -> int:
        return 0

    @override
    def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        return refused(UnsupportedParameter(f"The model {self.card_id!r} generates no text", param="model"))

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        if request.dimensions is not None and request.dimensions > DIMENSIONS:
            raise InvalidParameter(
                f"dimensions is {request.dimensions}; the model's vectors have {DIMENSIONS}",
                param="dimensions",
            )
        ids = [self._ids(prompt) for prompt in request.inputs]
        vectors = [_vector(one, request.dimensions or DIMENSIONS) for one in ids]
        packed = tuple(struct.pack(f"<{len(vector)}f", *vector) for vector in vectors)
        told = provenance_of(self.context_length) if request.wants_provenance else None
        return Embeddings(packed, sum(map(len, ids)), provenance=told)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        query = self._ids(TextPrompt(text=request.query))
        wanted = _vector(query, DIMENSIONS)
        scores: list[Score] = []
        num_tokens = 0
        for index, document in enumerate(request.documents):
            ids = self._ids(TextPrompt(text=document))
            num_tokens += len(query) + len(ids)
            pairs = zip(wanted, _vector(ids, DIMENSIONS), strict=True)
            scores.append(Score(index, sum(a * b for a, b in pairs)))
        scores.sort(key=lambda score: -score.score)
        return Ranking(tuple(scores[: request.top_n]), num_tokens)

    def _ids(self, prompt: TextPrompt | TokenPrompt) -> list[int]:
        if isinstance(prompt, TokenPrompt):
            tokens.check_ids(prompt.token_ids, "input")
            ids = list(prompt.token_ids)
        else:
            ids = [tokens.token_id(token.strip()) for token in tokens.split(prompt.text)]
        if len(ids) > self.context_length:
            raise ContextLengthExceeded(
                prompt_tokens=len(ids), context_length=self.context_length, param="input"
            )
        return ids

    @override
    async def abort(self, request_id: str) -> None:
        """Nothing runs long enough to be aborted."""

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return tokens.count(prompt)

    @override
    async def aclose(self) -> None:
        """Nothing is held."""


def _vector(ids: Sequence[int], length: int) -> list[float]:
    """Of length 1. The first number is the same in every vector, so that none is zero."""
    vector = [0.25] + [0.0] * (DIMENSIONS - 1)
    for i in ids:
        vector[1 + i % (DIMENSIONS - 1)] += 1.0
    kept = vector[:length]
    norm = math.sqrt(sum(x * x for x in kept))
    return [x / norm for x in kept]
