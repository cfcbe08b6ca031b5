"""One llama_context that makes vectors: a forward pass over many whole texts at once. Used by one thread only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from backends.errors import BackendFailed, InsufficientMemory
from backends.llamacpp.context import Batch
from backends.llamacpp.lib import engine_log, llama
from backends.llamacpp.model import GgufModel

MAX_SEQUENCES: Final = 256
"""llama.cpp's own bound (LLAMA_MAX_SEQ)."""
_POOLING_NONE: Final = 0
_POOLING_MEAN: Final = 1
_POOLING_RANK: Final = 4


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Sizes of a context. `max_tokens` and `max_sequences`: most of one forward pass; a text must fit into it whole,
    because a model without causal attention reads it in both directions. `flash_attention`: None lets llama.cpp
    decide."""

    max_tokens: int
    max_sequences: int
    n_threads: int
    flash_attention: bool | None = None


class EmbeddingContext:
    """Raises: InsufficientMemory when llama.cpp cannot allocate it."""

    def __init__(self, model: GgufModel, config: EmbeddingConfig) -> None:
        self._lib = llama()
        engine_log.take_errors()
        self._handle: Any = self._open(model, config, pooling=None)
        if self._handle and int(self._lib.llama_pooling_type(self._handle)) == _POOLING_NONE:
            # The file does not say how to make one vector of a text's; the mean is what most were trained for.
            self._lib.llama_free(self._handle)
            self._handle = self._open(model, config, pooling=_POOLING_MEAN)
        if not self._handle:
            lines = engine_log.take_errors()
            reason = f": {lines[-1].split(': ', 1)[-1][:200]}" if lines else ""
            raise InsufficientMemory(
                f"No context of {config.max_tokens} tokens could be made for the model{reason}"
            )
        self.config = config
        self.is_reranker = int(self._lib.llama_pooling_type(self._handle)) == _POOLING_RANK
        self.num_dimensions = int(
            self._lib.llama_model_n_cls_out(model.handle)
            if self.is_reranker
            else self._lib.llama_model_n_embd_out(model.handle)
        )
        self._memory = self._lib.llama_get_memory(self._handle)
        self._batch = _Texts(self._lib, config.max_tokens)

    def _open(self, model: GgufModel, config: EmbeddingConfig, *, pooling: int | None) -> Any:
        params = self._lib.llama_context_default_params()
        # A model that reads in both directions keeps no cells between passes, and needs none.
        arch = model.metadata("general.architecture") or ""
        is_causal = model.metadata(f"{arch}.attention.causal") != "false"
        params.n_ctx = config.max_tokens if is_causal else min(config.max_tokens, model.train_context_length)
        params.n_batch = params.n_ubatch = config.max_tokens
        params.n_seq_max = config.max_sequences
        params.n_threads = params.n_threads_batch = config.n_threads
        params.embeddings = True
        # One pool of cells: texts of unequal length share a pass, and none of it is kept.
        params.kv_unified = True
        params.no_perf = True
        if pooling is not None:
            params.pooling_type = pooling
        if config.flash_attention is not None:
            params.flash_attn_type = int(config.flash_attention)
        return self._lib.llama_init_from_model(model.handle, params)

    def compute(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """One row per text, as the model's pooling gives it: not yet of length 1. The interpreter lock is free during
        the forward pass.

        Raises: BackendFailed.
        """
        batch = self._batch
        batch.clear()
        for number, tokens in enumerate(texts):
            batch.add_text(tokens, number)
        if self._memory:
            self._lib.llama_memory_clear(self._memory, False)
        code = int(self._lib.llama_decode(self._handle, batch.struct()))
        if code != 0:
            raise BackendFailed(f"The engine failed to compute the embeddings (llama_decode: {code})")
        rows = np.empty((len(texts), self.num_dimensions), dtype=np.float32)
        for number in range(len(texts)):
            pointer = self._lib.llama_get_embeddings_seq(self._handle, number)
            if not pointer:
                raise BackendFailed("The engine computed no embedding for a text")
            rows[number] = np.ctypeslib.as_array(pointer, shape=(self.num_dimensions,))
        return rows

    def close(self) -> None:
        """Free it. Idempotent."""
        if self._handle:
            self._lib.llama_free(self._handle)
            self._handle = None


class _Texts(Batch):
    """Whole texts, of which every token counts for the result."""

    def add_text(self, tokens: Sequence[int], number: int) -> None:
        begin = self.num_tokens
        self.add(tokens, start=0, slot_id=number, wants_logits=False)
        self._logits[begin : self.num_tokens] = 1
