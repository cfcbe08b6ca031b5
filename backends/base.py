"""The contract that every backend meets, whatever engine or cloud stands behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import NotSupported
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    EventBatch,
    Feature,
    GenerationRequest,
    LoadProgress,
    Offers,
    Prompt,
)


class Backend(ABC):
    """One way of making tokens, with a life cycle: construct, `start`, use, `aclose`.

    Every method may be called from one event loop only. Errors are those of `backends.errors` and `models.errors`;
    anything else that escapes is a bug and becomes a 500.
    """

    kind: str
    """The name clients use: `llamacpp`, `vllm`, `litellm`, or `fake`."""
    features: frozenset[Feature] = frozenset()
    """What it takes beyond the plain request; a model of it may still refuse."""

    @abstractmethod
    async def start(self) -> None:
        """Begin whatever must run in the background (preload, probing). Returns at once; never raises for a model's
        sake: a failed preload shows in `health`."""

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        """Run one request; the events and their order are those of `backends.types`.

        Nothing happens before the first `__anext__`. What is wrong with the request is raised there, before any
        event. A model that is not loaded is loaded first (the request waits). Closing the generator, at any time and
        in any phase, aborts the engine's work; so does cancelling the task that awaits it. The caller owns the
        generator and must close it.

        Raises: UnknownModel, BackendNotAvailable, ContextLengthExceeded, UnsupportedParameter, InvalidParameter,
        InvalidGrammar, TemplateRefused, NotSupported; ModelNotReady, InsufficientMemory, Draining, Overloaded,
        BackendUnavailable, BackendFailed, BackendTimeout, UpstreamError.
        """

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """One vector per input. A model that is not loaded is loaded first. Cancelling the task that awaits it gives up
        its place in the queue; a forward pass that runs already is finished.

        Raises: as `generate`, and NotSupported where the backend makes no embeddings.
        """
        del request
        raise NotSupported(f"Backend {self.kind!r} does not support embeddings", param=None)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """A score per document. Otherwise as `embed`."""
        del request
        raise NotSupported(f"Backend {self.kind!r} does not support reranking", param=None)

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Stop the work of a request. Unknown or finished ids are no error. Its generator ends with BackendFailed
        unless it was closed already."""

    @abstractmethod
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        """Tokens of `prompt` after the model's own template. Loads the model if need be. Never waits for a
        generation."""

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """The tokens of a prompt. Loads the model if need be. Never waits for a generation.

        Raises: as `generate` for what is wrong with the prompt, but for its length; NotSupported.
        """
        del request
        raise NotSupported(f"Backend {self.kind!r} does not tell tokens", param=None)

    async def detokenize(self, request: DetokenizeRequest) -> str:
        """The text of tokens, special ones included; bytes that are no character are U+FFFD. Otherwise as `tokenize`.

        Raises: InvalidParameter for an id outside the vocabulary; NotSupported.
        """
        del request
        raise NotSupported(f"Backend {self.kind!r} does not know the text of tokens", param=None)

    @abstractmethod
    def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        """Load a model; the last progress has the phase `ready`. Joins a load that already runs, waits for an unload
        that runs. Closing the generator does not stop the load.

        Raises: UnknownModel, UnusableModel, SourceUnavailable, InsufficientMemory, NotSupported. What was loaded
        stays as it was.
        """

    @abstractmethod
    async def unload(self, model: str) -> None:
        """Refuse new work for the model, let running requests finish (bounded), free its memory. Succeeds at once if
        it is not loaded, joins an unload that runs.

        Raises: UnknownModel, Conflict (a load of it runs), NotSupported.
        """

    @abstractmethod
    async def health(self) -> BackendHealth:
        """Cheap and bounded (< 1 s); never raises, never makes a paid call, never waits for a generation."""

    async def metrics(self) -> bytes:
        """Prometheus text of the engines behind it; empty if there is none. Never raises."""
        return b""

    async def offers(self) -> Offers:
        """What it serves without a card. As cheap as `health`; asked now and then."""
        return Offers()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new work (Draining) and wait for what runs; whether all of it ended in time. A backend whose engine
        is elsewhere has nothing to wait for."""
        del timeout_s
        return True

    @abstractmethod
    async def aclose(self) -> None:
        """Abort what runs and free everything. Idempotent."""
