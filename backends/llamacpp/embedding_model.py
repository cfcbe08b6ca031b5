"""A GGUF model that makes vectors or scores, with its engine thread: the event loop's side."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from typing_extensions import override

from backends.batching import BatcherFactory, BatchLimits, Piece
from backends.embedding import EmbeddingInput, EmbeddingRequest, Embeddings, Ranking, RerankRequest, Score
from backends.errors import BackendFailed, ContextLengthExceeded, InvalidParameter, UnsupportedParameter
from backends.llamacpp.embedding import EmbeddingConfig, EmbeddingContext
from backends.llamacpp.embedding_pace import Pace
from backends.llamacpp.model import GgufModel
from backends.llamacpp.pairs import PairFrame
from backends.llamacpp.provenance import BATCHED, Witness
from backends.llamacpp.wordpiece import WordPiece
from backends.loader import LoadedModel, refused
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import ChatPrompt, EventBatch, GenerationRequest, Prompt, TokenPrompt
from backends.vectors import Vector, check_dimensions, pack

T = TypeVar("T")

NICENESS: Final = 10
"""Of the engine's thread, above the process's: who waits for the next word of an answer goes first. It counts within
the control group, so in a container nothing else gains by it."""

_INLINE_CHARS: Final = 4096
"""Requests whose texts have up to this size together are tokenised on the event loop (about 1 ms); larger ones in a
thread."""


class EmbeddingModel(LoadedModel):
    """Made by `LlamaCppLoader`; owns the weights and the context."""

    def __init__(
        self,
        card_id: str,
        model: GgufModel,
        config: EmbeddingConfig,
        *,
        context_length: int,
        memory_bytes: int,
        make_batcher: BatcherFactory[Any, Any],
        is_generating: Callable[[], bool],
        witness: Witness | None = None,
    ) -> None:
        """Loads nothing but a context; may run in another thread than the event loop's. `is_generating`: as `Pace`.
        `witness`: as of `LlamaCppModel`.

        Raises: InsufficientMemory.
        """
        self.card_id = card_id
        self.context_length = min(context_length, config.max_tokens)
        self.memory_bytes = memory_bytes
        self._model = model
        self._witness = witness
        self._wordpiece = WordPiece.of(model)
        self._context = EmbeddingContext(model, config)
        self._pace = Pace(is_generating)
        self._limits = BatchLimits(config.max_sequences, config.max_tokens)
        self._batcher = make_batcher(self._compute, self._limits)
        self._engine = ThreadPoolExecutor(1, "llm-embedding", initializer=_step_back)
        self._in_threads: set[asyncio.Future[Any]] = set()
        self._num_requests = 0
        self._num_computing = 0
        self._closing: asyncio.Task[None] | None = None

    @property
    @override
    def running(self) -> int:
        return min(self._num_computing, self._num_requests)

    @property
    @override
    def waiting(self) -> int:
        return self._num_requests - self.running

    @override
    def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        what = "ranks documents" if self._context.is_reranker else "makes embeddings"
        return refused(
            UnsupportedParameter(f"The model {self.card_id!r} {what} and generates no text", param="model")
        )

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        if self._context.is_reranker:
            return await super().embed(request)
        check_dimensions(request.dimensions, self._context.num_dimensions)
        witness = self._witness if request.wants_provenance else None
        if witness is not None:
            witness.begin()
        texts = await self._read(sum(map(_size, request.inputs)), self._tokenize_all, request.inputs)
        rows = await self._rows(texts)
        vectors = tuple(pack(row, request.dimensions) for row in rows)
        told = await witness.testify(texts, why_not=BATCHED) if witness is not None else None
        return Embeddings(vectors, sum(map(len, texts)), provenance=told)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        if not self._context.is_reranker:
            return await super().rerank(request)
        size = len(request.query) + sum(map(len, request.documents))
        pairs = await self._read(size, self._tokenize_pairs, request.query, request.documents)
        rows = await self._rows(pairs)
        scores = [Score(index, _probability(row)) for index, row in enumerate(rows)]
        scores.sort(key=lambda score: -score.score)
        return Ranking(tuple(scores[: request.top_n]), sum(map(len, pairs)))

    async def _rows(self, texts: Sequence[Sequence[int]]) -> list[Vector]:
        self._num_requests += 1
        try:
            return await self._batcher.compute_all(texts, len)
        finally:
            self._num_requests -= 1

    async def _compute(self, pieces: Sequence[Piece[Sequence[int]]]) -> list[Sequence[Vector]]:
        """One forward pass over the texts of all pieces, when its turn has come."""
        await self._pace.turn()
        wanted = [() if piece.is_abandoned else piece.inputs for piece in pieces]
        texts = [text for inputs in wanted for text in inputs]
        if not texts:
            return [()] * len(pieces)
        self._check_open()
        self._num_computing = sum(map(bool, wanted))
        try:
            rows = iter(await self._in_thread(self._engine, self._pass, texts))
        finally:
            self._num_computing = 0
        return [[next(rows) for _ in inputs] for inputs in wanted]

    def _pass(self, texts: Sequence[Sequence[int]]) -> Vector:
        begin, cpu_begin = time.monotonic(), time.thread_time()
        rows = self._context.compute(texts)
        self._pace.passed(time.monotonic() - begin, time.thread_time() - cpu_begin)
        return rows

    def _tokenize_all(self, inputs: Sequence[EmbeddingInput]) -> list[list[int]]:
        """Everything that can be wrong with an input is found here, so that it fails nobody it shares a batch with."""
        return [self._checked(self._tokenize(prompt)) for prompt in inputs]

    def _tokenize(self, prompt: EmbeddingInput) -> list[int]:
        """Token ids are taken as they are: whoever sends them has put the first and last token there."""
        if isinstance(prompt, TokenPrompt):
            self._model.check_ids(prompt.token_ids, "input")
            return list(prompt.token_ids)
        if self._wordpiece is not None:
            return self._wordpiece.encode(prompt.text)
        return self._model.tokenize(prompt.text, add_special=True, parse_special=True)

    def _tokenize_pairs(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Query and document as one text each, with the model's own tokens around and between them."""
        frame = PairFrame.of(self._model)
        first = self._bare(query)
        return [self._checked(frame.join(first, self._bare(text)), param="documents") for text in documents]

    def _bare(self, text: str) -> list[int]:
        if self._wordpiece is not None:
            return self._wordpiece.encode(text)[1:-1]
        return self._model.tokenize(text, add_special=False, parse_special=True)

    def _checked(self, tokens: list[int], param: str = "input") -> list[int]:
        if not tokens:
            raise InvalidParameter(f"{param}: it holds no token", param=param)
        if len(tokens) > self.context_length:
            raise ContextLengthExceeded(
                prompt_tokens=len(tokens), context_length=self.context_length, param=param
            )
        return tokens

    async def _read(self, size: int, work: Callable[..., T], *args: object) -> T:
        self._check_open()
        return work(*args) if size <= _INLINE_CHARS else await self._in_thread(None, work, *args)

    async def _in_thread(self, pool: ThreadPoolExecutor | None, work: Callable[..., T], *args: object) -> T:
        """In a thread that `aclose` waits for, also when nobody waits for its result any more: the weights stay until
        then."""
        running = asyncio.get_running_loop().run_in_executor(pool, work, *args)
        self._in_threads.add(running)
        running.add_done_callback(self._in_threads.discard)
        return await asyncio.shield(running)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise BackendFailed("The model was unloaded before the request was complete")

    @override
    async def abort(self, request_id: str) -> None:
        """A request ends with the task that awaits it."""

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        if isinstance(prompt, ChatPrompt):
            raise UnsupportedParameter(f"The model {self.card_id!r} has no chat template", param="messages")
        size = _size(prompt)
        return len(await self._read(size, self._tokenize, prompt))

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            raise UnsupportedParameter(f"The model {self.card_id!r} has no chat template", param="messages")
        if request.add_special_tokens is False and not isinstance(prompt, TokenPrompt):
            ids = await self._read(_size(prompt), self._bare, prompt.text)
        else:
            ids = await self._read(_size(prompt), self._tokenize, prompt)
        strings = tuple(map(self._model.vocabulary_text, ids)) if request.with_strings else None
        return Tokens(len(ids), tuple(ids), strings, self.context_length)

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        self._model.check_ids(request.token_ids, "tokens")
        return await self._read(len(request.token_ids), self._model.detokenize, request.token_ids)

    @override
    async def aclose(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._batcher.close()
        if self._witness is not None:
            self._witness.close()
        while self._in_threads:
            await asyncio.wait(self._in_threads)
        self._engine.shutdown(wait=False)
        self._context.close()
        self._model.close()


def _size(prompt: EmbeddingInput) -> int:
    return len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else len(prompt.text)


def _probability(row: Vector) -> float:
    """A reranker of one output was trained for its sigmoid; of several, the first is what it says of relevance.

    Raises: BackendFailed, as `pack`.
    """
    first = float(row[0])
    if not math.isfinite(first):
        raise BackendFailed("The engine computed a score that is no number")
    if len(row) > 1:
        return first
    return 1 / (1 + math.exp(-first)) if first >= 0 else math.exp(first) / (1 + math.exp(first))


def _step_back() -> None:
    """Give this thread, and the ones that the engine starts from it, less of a busy machine. Linux counts niceness by
    thread; elsewhere it is the process's, which is not ours to change."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
