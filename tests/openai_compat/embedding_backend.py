"""A backend that answers embeddings and ranks as a test tells it, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from typing_extensions import override

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest, Score
from models.card import ModelCard
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.wire import Reply, call, card, make_app

VECTOR = (0.6, -0.8, 0.0)


def pack(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def same_vectors(request: EmbeddingRequest) -> Embeddings:
    """`VECTOR` for every input, with its number in the last place."""
    return Embeddings(tuple(pack(*VECTOR[:2], i) for i in range(len(request.inputs))), 7)


def by_length(request: RerankRequest) -> Ranking:
    """The longest document first."""
    scores = [Score(i, float(len(document))) for i, document in enumerate(request.documents)]
    scores.sort(key=lambda score: -score.score)
    return Ranking(tuple(scores[: request.top_n]), 11)


@dataclass
class EmbeddingBackend(ScriptedBackend):
    """`hangs`: answers only when `release` is set. `error`: raised instead of an answer."""

    answer: Callable[[EmbeddingRequest], Embeddings] = same_vectors
    rank: Callable[[RerankRequest], Ranking] = by_length
    hangs: bool = False
    release: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    asked: list[Any] = field(default_factory=list)
    given_up: int = 0

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        await self._come(request)
        return self.answer(request)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        await self._come(request)
        return self.rank(request)

    async def _come(self, request: object) -> None:
        self.asked.append(request)
        self.reached.set()
        if self.hangs:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.given_up += 1
                raise
        if self.error is not None:
            raise self.error


def embedder(**fields: Any) -> ModelCard:
    return card("vec", **{"capabilities": ["embeddings", "rerank"], "aliases": ["vectors"], **fields})


def embedding_app(backend: EmbeddingBackend | None = None, **config: Any) -> FastAPI:
    """An app with a model that embeds, `vec`, and one that chats, `tiny`."""
    return make_app(backend or EmbeddingBackend(), cards=[embedder(), card()], **config)


async def embed(app: Any, *, query: str = "", **fields: Any) -> Reply:
    return await call(app, "POST", "/v1/embeddings", {"model": "vec", "input": "Hi", **fields}, query=query)
