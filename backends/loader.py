"""The seam between the pool and an engine: a model in memory, and how one kind of backend brings it there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import NotSupported, ServiceError, UnsupportedParameter
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import EventBatch, GenerationRequest, LoadProgress, Prompt

if TYPE_CHECKING:
    from models.card import ModelCard


class LoadedModel(ABC):
    """One model in memory with its engine. Made by `ModelLoader.load`, closed by the pool, used from one
    event loop."""

    card_id: str
    context_length: int
    """Tokens that prompt and answer of one choice may take together."""
    memory_bytes: int
    """What it really takes, for the budget: weights, KV cache and compute buffers."""

    @property
    @abstractmethod
    def running(self) -> int:
        """Requests (not sequences) that the engine works on."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests that wait inside the engine for a slot."""

    @property
    def failure(self) -> str | None:
        """Why this object can serve nothing any more, in one sentence; None while it can. The pool then
        drops it and loads the model again."""
        return None

    def watch(self, on_failure: Callable[[], None]) -> None:
        """`on_failure` is to be called on the event loop when `failure` is set, so that the model comes back before
        somebody asks for it. Called once by the pool. An engine that fails only under a request may leave it: the pool
        looks at `failure` after each."""
        del on_failure

    async def metrics(self) -> bytes:
        """The engine's own metrics as Prometheus text, with the card's id where it names a model; empty if it has none.
        Bounded in size and time; never raises."""
        return b""

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        """As `Backend.generate`, for a request whose model is this one."""

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """As `Backend.embed`, for a request whose model is this one."""
        del request
        raise UnsupportedParameter(f"The model {self.card_id!r} makes no embeddings", param="model")

    async def rerank(self, request: RerankRequest) -> Ranking:
        """As `Backend.rerank`, for a request whose model is this one."""
        del request
        raise UnsupportedParameter(f"The model {self.card_id!r} does not rank documents", param="model")

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """As `Backend.abort`."""

    @abstractmethod
    async def count_tokens(self, prompt: Prompt) -> int:
        """As `Backend.count_tokens`."""

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """As `Backend.tokenize`, for a request whose model is this one."""
        del request
        raise NotSupported(f"The model {self.card_id!r} does not tell its tokens", param=None)

    async def detokenize(self, request: DetokenizeRequest) -> str:
        """As `Backend.detokenize`, for a request whose model is this one."""
        del request
        raise NotSupported(f"The model {self.card_id!r} does not tell the text of its tokens", param=None)

    @abstractmethod
    async def aclose(self) -> None:
        """End every generation that still runs (BackendFailed), then free the memory before returning.
        Idempotent."""


class ModelLoader(ABC):
    """How one kind of backend finds its models and brings them into memory."""

    kind: str
    budget_bytes: int | None = None
    """What all its models together may take, where it knows better than the operator's silence."""

    @abstractmethod
    def resolve(self, name: str) -> ModelCard:
        """The card of an id or alias; cheap enough for every request.

        Raises: UnknownModel.
        """

    @abstractmethod
    def estimate_bytes(self, card: ModelCard) -> int:
        """Memory that loading the card will take, before it is loaded; 0 when it cannot be told (its file
        is not there yet). May read a file's header; called in a thread.

        Raises: UnknownModel, UnusableModel.
        """

    @abstractmethod
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        """Bring the model into memory and answer when it can generate. `on_progress` may be called from any
        thread; its phases are "fetching" and "loading". A failed or cancelled load leaves nothing behind.

        Raises: UnknownModel, UnusableModel, SourceUnavailable, InsufficientMemory, BackendFailed.
        """


async def refused(error: ServiceError) -> AsyncGenerator[EventBatch, None]:
    """The generation of a model that generates nothing: it ends with `error`."""
    nothing: list[EventBatch] = []
    for batch in nothing:
        yield batch
    raise error
