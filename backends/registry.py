"""Kind -> backend. An engine is imported inside its factory, so that this module costs nothing and a missing
engine is noticed only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from backends.base import Backend
from backends.errors import BackendNotAvailable
from backends.loader import ModelLoader
from backends.placement import Limits
from backends.pool import PooledBackend
from backends.types import Feature

if TYPE_CHECKING:
    from models.catalogue import Catalogue

LoaderFactory = Callable[["Catalogue", Mapping[str, Any]], ModelLoader]
BackendFactory = Callable[["Catalogue", Mapping[str, Any]], Backend]


def _fake(catalogue: Catalogue, options: Mapping[str, Any]) -> ModelLoader:
    from backends.fake.loader import FakeLoader

    return FakeLoader(resolve=catalogue.resolve, **options)


def _llamacpp(catalogue: Catalogue, options: Mapping[str, Any]) -> ModelLoader:
    from backends.llamacpp.loader import LlamaCppLoader, LlamaCppOptions

    return LlamaCppLoader(catalogue, LlamaCppOptions(**options))


def _vllm(catalogue: Catalogue, options: Mapping[str, Any]) -> ModelLoader:
    from backends.vllm.loader import VLLMLoader
    from backends.vllm.options import VLLMOptions

    return VLLMLoader(catalogue, VLLMOptions(**options))


def _litellm(catalogue: Catalogue, options: Mapping[str, Any]) -> Backend:
    from backends.litellm.backend import LiteLLMBackend
    from backends.litellm.patience import Patience

    knobs = dict(options)
    return LiteLLMBackend(catalogue, knobs.pop("environ"), Patience(**knobs))


ELSEWHERE: Final[Mapping[str, BackendFactory]] = {"litellm": _litellm}
"""The kinds whose models others serve: nothing is loaded, so no pool stands in front."""

LOADERS: Final[Mapping[str, LoaderFactory]] = {"fake": _fake, "llamacpp": _llamacpp, "vllm": _vllm}
"""The kinds whose models are loaded where the runner is."""


FEATURES: Final[Mapping[str, frozenset[Feature]]] = {
    "fake": frozenset({"tools", "structured_outputs", "reasoning_effort"}),
    "llamacpp": frozenset({"tools", "structured_outputs", "reasoning_effort"}),
    # Passed on whole: a server refuses what it cannot do (vLLM `suffix`). Not `best_of`, which vLLM drops in silence.
    "vllm": frozenset(
        {"tools", "structured_outputs", "reasoning_effort", "suffix", "echo_logprobs", "vision"}
    ),
    "litellm": frozenset({"tools", "structured_outputs", "reasoning_effort", "vision"}),
}
"""Kind -> what its backend takes (`Backend.features`), known to a gateway whose runner is another process."""


def create_remote_backend(urls: Sequence[str], api_key: str | None, catalogue: Catalogue) -> Backend:
    """The backend `vllm` for servers that run elsewhere; it is not started. `catalogue` learns what they serve."""
    from backends.vllm.remote import RemoteBackend
    from backends.vllm.upstream import Upstream

    backend = RemoteBackend([Upstream(url, api_key=api_key) for url in urls], catalogue)
    backend.features = FEATURES["vllm"]
    return backend


def create_backend(
    kind: str,
    *,
    catalogue: Catalogue,
    limits: Limits | None = None,
    options: Mapping[str, Any] | None = None,
) -> Backend:
    """The backend of a runner process, not started. It preloads the cards of its kind that say so.

    `options`: the knobs of the kind (`FakeLoader`'s arguments, the fields of `LlamaCppOptions`, `VLLMOptions`
    or LiteLLM's `Patience` and its `environ`).
    A budget that `limits` does not give is the loader's own.

    Raises: BackendNotAvailable for a kind that this build does not have, naming those it has, or whose engine
    is not installed; TypeError for an option that the kind does not have.
    """
    factory: LoaderFactory | BackendFactory | None = LOADERS.get(kind) or ELSEWHERE.get(kind)
    if factory is None:
        supported = ", ".join(sorted([*LOADERS, *ELSEWHERE]))
        raise BackendNotAvailable(f"Backend {kind[:64]!r} is unknown; supported are {supported}")
    try:
        made = factory(catalogue, options or {})
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("backends", "models"):
            raise  # ours to fix, not the operator's to install
        why = f"Backend {kind!r} needs the package {error.name!r}, which is not installed"
        raise BackendNotAvailable(why) from error
    if isinstance(made, Backend):
        return made
    preload = [card.id for card in catalogue.cards(kind) if card.preload]
    limits = limits or Limits()
    if limits.budget_bytes is None:
        limits = replace(limits, budget_bytes=made.budget_bytes)
    backend = PooledBackend(made, limits=limits, preload=preload)
    backend.features = FEATURES.get(kind, frozenset())
    return backend
