"""From a card to a running engine: fetch the file, look at its header, load it, start the loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from backends.llamacpp.context import ContextConfig
from backends.llamacpp.engine import EngineConfig
from backends.llamacpp.loaded import LlamaCppModel
from backends.llamacpp.model import GgufModel
from backends.llamacpp.template import compile_template
from backends.loader import LoadedModel, ModelLoader
from backends.types import LoadProgress
from models.errors import UnusableModel
from models.gguf import GgufHeader, read_header
from models.sources import local_path, materialise

if TYPE_CHECKING:
    from models.card import ModelCard
    from models.catalogue import Catalogue

log = logging.getLogger("llm.llamacpp")

_KV_ELEMENT_BYTES = 2
_COMPUTE_BYTES = 64 << 20
"""Rough size of llama.cpp's compute buffers, for the estimate before a load."""


@dataclass(frozen=True, kw_only=True)
class LlamaCppOptions:
    """The knobs of `llamacpp:` in `bentofile.yaml`; sizes in tokens. None lets the machine decide."""

    num_slots: int = 16
    n_ctx: int = 8192
    n_batch: int = 512
    prefill_chunk_tokens: int = 96
    n_threads: int | None = None
    n_threads_batch: int | None = None
    n_gpu_layers: int = -1
    kv_unified: bool = True


class LlamaCppLoader(ModelLoader):
    """Serves the cards of a catalogue that have a source for `llamacpp`."""

    kind = "llamacpp"

    def __init__(self, catalogue: Catalogue, options: LlamaCppOptions | None = None) -> None:
        self._catalogue = catalogue
        self._options = options or LlamaCppOptions()

    @override
    def resolve(self, name: str) -> ModelCard:
        return self._catalogue.resolve(name)

    @override
    def estimate_bytes(self, card: ModelCard) -> int:
        path = local_path(card, self.kind)
        return 0 if path is None else self._bytes(read_header(path))

    def _bytes(self, header: GgufHeader) -> int:
        kv = (header.kv_elements_per_token or 0) * _KV_ELEMENT_BYTES * self._n_ctx(header)
        return header.file_bytes + kv + _COMPUTE_BYTES

    def _n_ctx(self, header: GgufHeader) -> int:
        """Cells beyond what the slots could ever use are not allocated."""
        return min(
            self._options.n_ctx, self._options.num_slots * (header.context_length or self._options.n_ctx)
        )

    @override
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        loop = asyncio.get_running_loop()
        stopped = threading.Event()

        def report(progress: LoadProgress) -> None:
            if not stopped.is_set():
                loop.call_soon_threadsafe(on_progress, progress)

        work = asyncio.ensure_future(asyncio.to_thread(self._load, card, loop, report, stopped))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # llama.cpp stops at its next progress call; nothing may stay in memory that nobody knows of.
            stopped.set()
            model = (await asyncio.gather(work, return_exceptions=True))[0]
            if isinstance(model, LlamaCppModel):
                await model.aclose()
            raise

    def _load(
        self,
        card: ModelCard,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[LoadProgress], None],
        stopped: threading.Event,
    ) -> LlamaCppModel:
        path = materialise(
            card, self.kind, on_progress=lambda done, total: report(LoadProgress("fetching", done, total))
        )
        header = read_header(path)
        if header.has_pooling:
            raise UnusableModel(f"The model {card.id!r} makes embeddings and cannot generate text")
        size = header.file_bytes

        def on_fraction(fraction: float) -> bool:
            report(LoadProgress("loading", int(fraction * size), size))
            return not stopped.is_set()

        model = GgufModel(path, n_gpu_layers=self._options.n_gpu_layers, on_progress=on_fraction)
        try:
            return self._start(card, header, model, loop)
        except BaseException:
            model.close()
            raise

    def _start(
        self,
        card: ModelCard,
        header: GgufHeader,
        model: GgufModel,
        loop: asyncio.AbstractEventLoop,
    ) -> LlamaCppModel:
        options = self._options
        template = compile_template(
            card.chat_template or model.chat_template(),
            bos_token=model.text_of_special("bos"),
            eos_token=model.text_of_special("eos"),
            warn=lambda why: log.warning("%s: %s", card.id, why),
        )
        threads = options.n_threads or usable_cores()
        context = ContextConfig(
            n_ctx=self._n_ctx(header),
            num_slots=options.num_slots,
            n_batch=min(options.n_batch, self._n_ctx(header)),
            n_threads=threads,
            n_threads_batch=options.n_threads_batch or threads,
            kv_unified=options.kv_unified,
        )
        limits = (context.tokens_per_sequence, model.train_context_length, card.context_length)
        config = EngineConfig(
            context=context,
            prefill_chunk_tokens=options.prefill_chunk_tokens,
            context_length=min(limit for limit in limits if limit),
        )
        return LlamaCppModel(card.id, model, template, config, memory_bytes=self._bytes(header), loop=loop)


def usable_cores() -> int:
    """Cores this process may really use: its affinity, and the control group's quota where one is set."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)
