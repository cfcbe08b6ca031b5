"""A model that vLLM serves in a child process: its server as an `Upstream`, its life as the pool sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from typing import Final

import msgspec
from typing_extensions import override

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import BackendError, BackendFailed, BackendUnavailable, InvalidParameter, UpstreamError
from backends.loader import LoadedModel
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import EventBatch, Finished, GenerationRequest, Prompt, TokenPrompt
from backends.vllm.process import EngineProcess
from backends.vllm.provenance import Witness
from backends.vllm.pulse import until_stuck
from backends.vllm.upstream import Upstream

log = logging.getLogger("llm.vllm")

NOTICE_S: Final = 1.0
"""A connection breaks before the death behind it is noticed; how long a request waits to learn of it."""
METRICS_TIMEOUT_S: Final = 0.4
"""Less than the gateway grants the runner: one engine that hangs costs its own metrics only."""
MAX_METRICS_BYTES: Final = 1 << 20
_OURS: Final = b"vllm:"
"""Of the server's metrics those of vLLM itself; `process_…` and `python_…` have no label that tells models apart."""


class VLLMModel(LoadedModel):
    """Made by `VLLMLoader`; owns the connection and the process.

    `num_vocab_tokens`: None where the weights do not say; then ids are not checked here. `stall_timeout_s`: see
    `backends.vllm.pulse`; None waits for ever.
    """

    def __init__(
        self,
        card_id: str,
        engine: EngineProcess,
        upstream: Upstream,
        *,
        context_length: int,
        memory_bytes: int,
        num_vocab_tokens: int | None,
        stall_timeout_s: float | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.card_id = card_id
        self.context_length = context_length
        self.memory_bytes = memory_bytes
        self._engine = engine
        self._upstream = upstream
        self._num_vocab_tokens = num_vocab_tokens
        self._stall_timeout_s = stall_timeout_s
        self._witness = witness
        self._pulse: asyncio.Task[None] | None = None
        self._closing = False

    @property
    @override
    def running(self) -> int:
        return self._upstream.running

    @property
    @override
    def waiting(self) -> int:
        return 0  # its queue is its own; `vllm:num_requests_waiting` shows it

    @property
    @override
    def failure(self) -> str | None:
        return self._engine.failure

    @override
    def watch(self, on_failure: Callable[[], None]) -> None:
        self._engine.on_failure = on_failure
        if self._engine.failure is not None:
            on_failure()
        elif self._stall_timeout_s is not None:
            self._pulse = asyncio.create_task(self._feel_pulse(self._stall_timeout_s))

    async def _feel_pulse(self, limit_s: float) -> None:
        await until_stuck(self._upstream, limit_s, asyncio.sleep)
        await self._engine.give_up(f"got nothing done for {limit_s:g} s")

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        self._check_token_ids(request)
        witness = self._witness if request.wants_provenance else None
        if witness is not None:
            witness.begin()
        try:
            async with aclosing(self._upstream.generate(request, served_name=self.card_id)) as batches:
                async for batch in batches:
                    last = batch[-1]
                    if witness is not None and type(last) is Finished and last.provenance is not None:
                        told = await witness.testify(last.provenance)
                        batch[-1] = msgspec.structs.replace(last, provenance=told)
                    yield batch
        except BackendFailed as error:
            # Aborted: by its caller, or because the model was closed under it, which a dead engine's is.
            raise (self._ending() or error) from None
        except (UpstreamError, BackendUnavailable) as error:
            raise await self._cause_of(error) from None

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        for prompt in request.inputs:
            if isinstance(prompt, TokenPrompt) and self._num_vocab_tokens is not None:
                _check_ids(prompt.token_ids, self._num_vocab_tokens, "input")
        witness = self._witness if request.wants_provenance else None
        if witness is not None:
            witness.begin()
        try:
            found = await self._upstream.embed(request, served_name=self.card_id)
            if witness is not None and found.provenance is not None:
                found = msgspec.structs.replace(found, provenance=await witness.testify(found.provenance))
            return found
        except (UpstreamError, BackendUnavailable) as error:
            raise await self._cause_of(error) from None

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        try:
            return await self._upstream.rerank(request, served_name=self.card_id)
        except (UpstreamError, BackendUnavailable) as error:
            raise await self._cause_of(error) from None

    def _ending(self) -> BackendFailed | None:
        if self._engine.failure is not None:
            return BackendFailed(self._engine.failure)
        return BackendFailed(f"The model {self.card_id!r} was unloaded") if self._closing else None

    async def _cause_of(self, error: BackendError) -> BackendFailed:
        """What the server's failure to answer says of the engine: its death where that was the cause."""
        if not self._closing:
            await self._engine.fallen(NOTICE_S)
        return self._ending() or BackendFailed(error.message)

    def _check_token_ids(self, request: GenerationRequest) -> None:
        """An id beyond the vocabulary reads and writes outside of the engine's tensors, and has ended it for everybody
        (vllm#54195). Raises: InvalidParameter."""
        size = self._num_vocab_tokens
        if size is None:
            return
        sampling = request.sampling
        _check_ids(sampling.logit_bias, size, "logit_bias")
        _check_ids(sampling.stop_token_ids, size, "stop_token_ids")
        for prompt in request.prompts:
            if isinstance(prompt, TokenPrompt):
                _check_ids(prompt.token_ids, size, "prompt")

    @override
    async def abort(self, request_id: str) -> None:
        await self._upstream.abort(request_id)

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        if isinstance(prompt, TokenPrompt) and self._num_vocab_tokens is not None:
            _check_ids(prompt.token_ids, self._num_vocab_tokens, "prompt")
        try:
            return await self._upstream.count_tokens(self.card_id, prompt)
        except (UpstreamError, BackendUnavailable) as error:
            raise await self._cause_of(error) from None

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        try:
            found = await self._upstream.tokenize(self.card_id, request)
        except (UpstreamError, BackendUnavailable) as error:
            raise await self._cause_of(error) from None
        return msgspec.structs.replace(found, context_length=found.context_length or self.context_length)

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        if self._num_vocab_tokens is not None:
            _check_ids(request.token_ids, self._num_vocab_tokens, "tokens")
        try:
            return await self._upstream.detokenize(self.card_id, request)
        except (UpstreamError, BackendUnavailable) as error:
            raise await self._cause_of(error) from None

    @override
    async def metrics(self) -> bytes:
        try:
            async with asyncio.timeout(METRICS_TIMEOUT_S):
                return own_metrics(await self._upstream.metrics())
        except TimeoutError:
            return b""

    @override
    async def aclose(self) -> None:
        self._closing = True
        if self._witness is not None:
            self._witness.close()
        if self._pulse is not None:
            self._pulse.cancel()
        await self._upstream.aclose()
        await self._engine.stop()


def _check_ids(ids: Collection[int], size: int, param: str) -> None:
    for token in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token < size:
            raise InvalidParameter(
                f"{param}: token id {token} is outside the model's vocabulary of {size} tokens", param=param
            )


def own_metrics(text: bytes) -> bytes:
    """vLLM's own families of a Prometheus text, with their samples as they are; at most `MAX_METRICS_BYTES`, whole
    lines."""
    kept: list[bytes] = []
    size = 0
    for line in text.splitlines(keepends=True):
        name = line.split(b" ", 3)[2] if line.startswith((b"# HELP ", b"# TYPE ")) else line
        if not name.startswith(_OURS):
            continue
        size += len(line)
        if size > MAX_METRICS_BYTES:
            log.warning("the engine's metrics are longer than %d bytes and were cut", MAX_METRICS_BYTES)
            break
        kept.append(line)
    return b"".join(kept)
