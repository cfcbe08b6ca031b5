"""From a card to a running engine: fetch the file, look at its header, load it, start the loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from backends.batching import BatcherFactory, Unbatched
from backends.digest import ModelDigest
from backends.llamacpp.context import ContextConfig
from backends.llamacpp.embedding import MAX_SEQUENCES, EmbeddingConfig
from backends.llamacpp.embedding_model import EmbeddingModel
from backends.llamacpp.engine import EngineConfig
from backends.llamacpp.lib import llama
from backends.llamacpp.loaded import LlamaCppModel
from backends.llamacpp.model import GgufModel
from backends.llamacpp.provenance import Witness
from backends.llamacpp.template import compile_template
from backends.loader import LoadedModel, ModelLoader
from backends.main_memory import available_bytes
from backends.parsing.reasoning import ThoughtMarkers
from backends.processors import usable_cores
from backends.types import LoadProgress
from models.digest import weight_files
from models.errors import SourceUnavailable
from models.gguf import GgufHeader, read_header
from models.sources import local_path, materialise, verified_sha256

if TYPE_CHECKING:
    from models.card import ModelCard
    from models.catalogue import Catalogue

log = logging.getLogger("llm.llamacpp")

EMBEDDING_BATCH_TOKENS: Final = 512
"""Most tokens in one forward pass of an embedding model, unless one text may be longer: attention is computed between
all tokens of a pass, other texts' too, and costs their square. CPU time of a text of 34 tokens on one thread: 21.2 ms
by itself, 12.0 in passes of 544 tokens, 13.3 of 1,088, 18.2 of 2,176; of 10 tokens: 8.0 by itself, 3.4 in passes of
320, 3.9 of 640."""
_KV_ELEMENT_BYTES = 2
_COMPUTE_BYTES = 64 << 20
"""Rough size of llama.cpp's compute buffers, for the estimate before a load."""
_EMBEDDING_COMPUTE_BYTES = 80 << 20
"""The same for a pass of `EMBEDDING_BATCH_TOKENS`: 68 MiB for 384 numbers a token."""


@dataclass(frozen=True, kw_only=True)
class LlamaCppOptions:
    """The knobs of `llamacpp:` in `bentofile.yaml`; sizes in tokens. None lets the machine decide."""

    num_slots: int = 16
    n_ctx: int = 8192
    """Most tokens of one sequence, as far as the model was trained for them."""
    n_batch: int = 128
    prefill_chunk_tokens: int = 96
    n_threads: int | None = None
    n_threads_batch: int | None = None
    n_gpu_layers: int = -1
    kv_unified: bool = False
    memory_budget_bytes: int | None = None
    max_batch_size: int = 32
    """Most texts in one forward pass of an embedding model."""
    make_batcher: BatcherFactory[Any, Any] = Unbatched
    """What decides which requests' texts are computed together."""


class LlamaCppLoader(ModelLoader):
    """Serves the cards of a catalogue that have a source for `llamacpp`."""

    kind = "llamacpp"

    def __init__(self, catalogue: Catalogue, options: LlamaCppOptions | None = None) -> None:
        self._catalogue = catalogue
        self._options = options or LlamaCppOptions()
        self._generators: weakref.WeakSet[LlamaCppModel] = weakref.WeakSet()

    @override
    def resolve(self, name: str) -> ModelCard:
        return self._catalogue.resolve(name)

    @override
    def estimate_bytes(self, card: ModelCard) -> int:
        path = local_path(card, self.kind)
        return 0 if path is None else self._bytes(read_header(path))

    def _bytes(self, header: GgufHeader) -> int:
        """What the model takes at first; a split cache may grow later, into what is spare then."""
        if header.has_pooling:
            return header.file_bytes + _EMBEDDING_COMPUTE_BYTES
        cells = per_sequence = self._tokens_per_sequence(header)
        if not self._options.kv_unified:
            cells = min(per_sequence, EngineConfig.initial_tokens) * self._options.num_slots
        return header.file_bytes + cells * _cell_bytes(header) + _COMPUTE_BYTES

    def _tokens_per_sequence(self, header: GgufHeader) -> int:
        return min(self._options.n_ctx, header.context_length or self._options.n_ctx)

    @override
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        loop = asyncio.get_running_loop()
        stopped = threading.Event()

        def report(progress: LoadProgress) -> None:
            if not stopped.is_set():
                loop.call_soon_threadsafe(on_progress, progress)

        work = asyncio.ensure_future(asyncio.to_thread(self._load, card, loop, report, stopped))
        try:
            loaded = await asyncio.shield(work)
            if not isinstance(loaded, EmbeddingModel):
                self._generators.add(loaded)
            return loaded
        except asyncio.CancelledError:
            # llama.cpp stops at its next progress call; nothing may stay in memory that nobody knows of.
            stopped.set()
            model = (await asyncio.gather(work, return_exceptions=True))[0]
            if isinstance(model, LoadedModel):
                await model.aclose()
            raise

    def _load(
        self,
        card: ModelCard,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[LoadProgress], None],
        stopped: threading.Event,
    ) -> LlamaCppModel | EmbeddingModel:
        def on_bytes(done: int, total: int) -> None:
            if stopped.is_set():
                raise SourceUnavailable("The load was stopped")
            report(LoadProgress("fetching", done, total))

        path = materialise(card, self.kind, on_progress=on_bytes)
        header = read_header(path)
        size = header.file_bytes

        def on_fraction(fraction: float) -> bool:
            report(LoadProgress("loading", int(fraction * size), size))
            return not stopped.is_set()

        llama()
        # Importing the engine made many objects that stay for good; a full collection over them holds up a step.
        gc.freeze()
        model = GgufModel(path, n_gpu_layers=self._options.n_gpu_layers, on_progress=on_fraction)
        try:
            digest = _digest(path)
            if header.has_pooling:
                return self._embedding(card, model, digest)
            return self._start(card, header, model, digest, loop)
        except BaseException:
            model.close()
            raise

    def _start(
        self,
        card: ModelCard,
        header: GgufHeader,
        model: GgufModel,
        digest: ModelDigest,
        loop: asyncio.AbstractEventLoop,
    ) -> LlamaCppModel:
        options = self._options
        marks = card.reasoning_markers
        template = compile_template(
            card.chat_template or model.chat_template(),
            bos_token=model.text_of_special("bos"),
            eos_token=model.text_of_special("eos"),
            warn=lambda why: log.warning("%s: %s", card.id, why),
            thought_markers=None if marks is None else ThoughtMarkers(marks.open, marks.close),
        )
        threads = options.n_threads or usable_cores()
        per_sequence = self._tokens_per_sequence(header)
        context = ContextConfig(
            tokens_per_sequence=per_sequence,
            num_slots=options.num_slots,
            n_batch=max(min(options.n_batch, per_sequence), options.num_slots),
            n_threads=threads,
            n_threads_batch=options.n_threads_batch or threads,
            kv_unified=options.kv_unified,
            # On a CPU llama.cpp's flash attention is slower (8.2 against 5.6 ms a token at 150 cached tokens, 29
            # against 14 at 1,000) and its result depends on how a prompt is cut into batches.
            flash_attention=None if llama().llama_supports_gpu_offload() and options.n_gpu_layers else False,
        )
        limits = (per_sequence, model.train_context_length, card.context_length)
        config = EngineConfig(
            context=context,
            prefill_chunk_tokens=options.prefill_chunk_tokens,
            context_length=min(limit for limit in limits if limit),
            cell_bytes=_cell_bytes(header),
            spare_bytes=self._spare_bytes,
        )
        return LlamaCppModel(
            card.id,
            model,
            template,
            config,
            memory_bytes=self._bytes(header),
            loop=loop,
            witness=Witness(digest, context_length=config.context_length),
        )

    def _embedding(self, card: ModelCard, model: GgufModel, digest: ModelDigest) -> EmbeddingModel:
        options = self._options
        limits = (options.n_ctx, model.train_context_length, card.context_length)
        context_length = min(limit for limit in limits if limit)
        config = EmbeddingConfig(
            max_tokens=max(EMBEDDING_BATCH_TOKENS, context_length),
            max_sequences=min(options.max_batch_size, MAX_SEQUENCES),
            # Half of the cores: a pass over small matrices gains little from more, its threads wait for each other in
            # every step, and beside a chat on all cores that wait took ten times as long as the work.
            n_threads=options.n_threads_batch or max(1, usable_cores() // 2),
        )
        return EmbeddingModel(
            card.id,
            model,
            config,
            context_length=context_length,
            memory_bytes=model.weights_bytes + _EMBEDDING_COMPUTE_BYTES,
            make_batcher=options.make_batcher,
            is_generating=self._is_generating,
            witness=Witness(digest, context_length=min(context_length, config.max_tokens)),
        )

    def _is_generating(self) -> bool:
        return any(model.running for model in self._generators)

    def _spare_bytes(self) -> int:
        """Half of what is free: the old cache stays until the new one holds its content, and others need memory too."""
        budget = self._options.memory_budget_bytes
        return available_bytes() // 2 if budget is None else min(budget, available_bytes())


def _digest(path: Path) -> ModelDigest:
    """Known at once where the card's checksum was verified when the file was opened."""
    files = weight_files(path)
    return ModelDigest(files, known=verified_sha256(path) if len(files) == 1 else None)


def _cell_bytes(header: GgufHeader) -> int:
    return (header.kv_elements_per_token or 0) * _KV_ELEMENT_BYTES
