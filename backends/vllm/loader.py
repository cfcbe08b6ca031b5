"""From a card to a running server of vLLM: find the weights, cut its share of the memory, start it.

Memory is planned per GPU. All models together get `gpu_memory_utilization` of each GPU; that budget is the pool's
limit. vLLM takes its share when it starts and fills with KV cache what the weights leave of it. So a share is fixed: by
the card, or else it is the budget's `max_loaded_models`-th part (all of it by default), and never less than weights and
one sequence need. Two models that do not fit side by side are then the pool's business, as everywhere: an idle one is
evicted, or the load refused.

On a CPU a model takes its weights, a KV cache of `kv_cache_space_gib`, and what its processes are in themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from backends.errors import BackendFailed, InsufficientMemory, ServiceError
from backends.loader import LoadedModel, ModelLoader
from backends.main_memory import available_bytes
from backends.types import LoadProgress
from backends.vllm.loaded import VLLMModel
from backends.vllm.memory import Gpu, visible_gpus
from backends.vllm.options import GIB, Device, VLLMOptions, command_of, environment_of, template_file
from backends.vllm.process import EngineProcess
from backends.vllm.provenance import Witness, machine_of
from backends.vllm.upstream import Upstream
from backends.vllm.weights import WeightsFacts, read_facts
from models.errors import SourceUnavailable
from models.sources import local_path, materialise

if TYPE_CHECKING:
    from models.card import ModelCard
    from models.catalogue import Catalogue

log = logging.getLogger("llm.vllm")

OVERHEAD_BYTES: Final[dict[Device, int]] = {"gpu": 2 * GIB, "cpu": 2 * GIB}
"""Beside weights and KV cache. On a GPU the CUDA context, captured graphs and activations; on a CPU its three processes
(measured with vLLM 0.32: 0.65 + 0.65 + 0.7 GiB)."""
_MIN_KV_TOKENS: Final = 2048
"""Tokens of KV cache without which loading a model is not worth it, unless its context is shorter."""
_LONGEST_SOCKET: Final = 60
"""Bytes of the folder's path: vLLM puts sockets with longer names beside ours, and the kernel takes 107 in all."""


class VLLMLoader(ModelLoader):
    """Serves the cards of a catalogue that have a local source for `vllm`."""

    kind = "vllm"

    def __init__(
        self,
        catalogue: Catalogue,
        options: VLLMOptions | None = None,
        *,
        gpus: Sequence[Gpu] | None = None,
    ) -> None:
        """`gpus`: those that vLLM will see; None asks the driver."""
        self._catalogue = catalogue
        self._options = options or VLLMOptions()
        if gpus is None:
            wanted = self._options.environment.get("CUDA_VISIBLE_DEVICES")
            gpus = () if self._options.device == "cpu" else visible_gpus(wanted)
        self._gpus = tuple(gpus)
        self._starting = asyncio.Lock()
        self.device: Device = self._options.device or ("gpu" if self._gpus else "cpu")
        self.budget_bytes = self._options.memory_budget_bytes or self._own_budget()
        """Of each GPU, or of main memory. None: a GPU that cannot be asked; vLLM then refuses what does not fit."""

    def _own_budget(self) -> int | None:
        if self.device == "cpu":
            return available_bytes()
        return self._fraction(self._options.gpu_memory_utilization) if self._gpus else None

    def _fraction(self, share: float) -> int:
        return int(share * min(gpu.total_bytes for gpu in self._gpus))

    @override
    def resolve(self, name: str) -> ModelCard:
        return self._catalogue.resolve(name)

    @override
    def estimate_bytes(self, card: ModelCard) -> int:
        path = local_path(card, self.kind)
        return self._bytes(card, WeightsFacts() if path is None else read_facts(path))

    def _bytes(self, card: ModelCard, facts: WeightsFacts) -> int:
        """What the model takes of the budget; of weights that are not here yet, what is sure."""
        if self.device == "cpu":
            if not facts.weights_bytes:
                return 0
            return facts.weights_bytes + self._kv_cache_bytes() + OVERHEAD_BYTES["cpu"]
        own = card.vllm.gpu_memory_utilization
        if own is not None and self._gpus:
            return self._fraction(own)
        equal = (self.budget_bytes or 0) // (self._options.max_loaded_models or 1)
        return max(self._needed(card, facts), equal)

    def _needed(self, card: ModelCard, facts: WeightsFacts) -> int:
        """Of one GPU: weights and KV cache are split over all that one model uses."""
        if not facts.weights_bytes:
            return 0
        limits = (self._options.max_model_len, card.context_length, facts.context_length, _MIN_KV_TOKENS)
        tokens = min(limit for limit in limits if limit)
        split = facts.weights_bytes + tokens * facts.kv_bytes_per_token
        return split // self._options.num_parts + OVERHEAD_BYTES["gpu"]

    def _kv_cache_bytes(self) -> int:
        return int(self._options.kv_cache_space_gib * GIB)

    @override
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        model = await self._fetch(card, on_progress)
        facts = await asyncio.to_thread(read_facts, model)
        size = self._bytes(card, facts)
        budget = self.budget_bytes if self.device == "gpu" else None
        if budget is not None and size > budget:
            raise InsufficientMemory(
                f"The model {card.id!r} needs {size / GIB:.2f} GiB of each GPU; "
                f"{budget / GIB:.2f} GiB are for models",
                param="model",
            )
        # vLLM measures what is free while it starts, and gives up when another process changes that meanwhile.
        async with self._starting if self.device == "gpu" else contextlib.nullcontext():
            on_progress(LoadProgress("loading", 0, facts.weights_bytes))
            return await self._serve(card, model, facts, size)

    async def _fetch(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> Path:
        stopped = threading.Event()

        def on_bytes(done: int, total: int) -> None:
            if stopped.is_set():
                raise SourceUnavailable("The load was stopped")
            on_progress(LoadProgress("fetching", done, total))

        work = asyncio.ensure_future(asyncio.to_thread(materialise, card, self.kind, on_progress=on_bytes))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.gather(work, return_exceptions=True)
            raise

    async def _serve(self, card: ModelCard, model: Path, facts: WeightsFacts, size: int) -> VLLMModel:
        folder = await asyncio.to_thread(_private_folder)
        socket = folder / "api.sock"
        if card.chat_template:
            await asyncio.to_thread(template_file(socket).write_text, card.chat_template, "utf-8")
        total = min((gpu.total_bytes for gpu in self._gpus), default=0)
        command = command_of(
            card,
            model,
            socket,
            self._options,
            memory_share=(size / total if total else self._options.gpu_memory_utilization)
            if self.device == "gpu"
            else None,
            kv_cache_bytes=self._kv_cache_bytes() if self.device == "cpu" else None,
        )
        upstream = Upstream(f"file://{socket}")
        engine = EngineProcess(
            card.id,
            command,
            environment=environment_of(self._options, folder, self.device),
            folder=folder,
            probe=upstream.is_healthy,
            hidden={str(model): repr(card.id)},
            stop_timeout_s=self._options.stop_timeout_s,
        )
        try:
            await engine.start(self._options.start_timeout_s)
            context_length = await _context_length(upstream, card)
        except BaseException:
            await upstream.aclose()
            await engine.stop()
            raise
        return VLLMModel(
            card.id,
            engine,
            upstream,
            context_length=context_length,
            memory_bytes=size,
            num_vocab_tokens=facts.num_vocab_tokens,
            stall_timeout_s=self._options.stall_timeout_s,
            witness=Witness(
                model, context_length=context_length, machine=machine_of(self.device, self._gpus)
            ),
        )


async def _context_length(upstream: Upstream, card: ModelCard) -> int:
    """As the server says it. Raises: BackendFailed."""
    try:
        served = await upstream.models()
    except ServiceError as error:
        raise BackendFailed(
            f"The engine of {card.id!r} does not say what it serves: {error.message}"
        ) from None
    found = next((model.context_length for model in served if model.id == card.id), None)
    if found is None:
        raise BackendFailed(f"The engine of {card.id!r} does not say how long its context is")
    return found


def _private_folder() -> Path:
    """For one engine's sockets and temporary files; only we may enter it."""
    folder = tempfile.mkdtemp(prefix="vllm-")
    if len(folder.encode()) > _LONGEST_SOCKET:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="vllm-", dir="/tmp")
    return Path(folder)
