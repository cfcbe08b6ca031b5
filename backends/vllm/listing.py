"""What a server says of itself in `GET /v1/models`: its models, their contexts, and whose server it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec

from backends.errors import UpstreamError
from backends.vllm.dialect import GENERIC, Dialect, dialect_of
from models import names
from models.card import Capability

MAX_MODELS: Final = 1000
"""Models of one server that are looked at."""
CAPABILITIES: Final[tuple[Capability, ...]] = get_args(Capability)


class ServedModel(msgspec.Struct, frozen=True):
    """A model as its server lists it. `context_length`: tokens (`max_model_len`); None, as for `capabilities`, where it
    does not say."""

    id: str
    context_length: int | None = None
    capabilities: tuple[Capability, ...] | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One answer, with only names that can be a model's. Empty: the server has no such route."""

    models: tuple[ServedModel, ...] = ()
    dialect: Dialect = GENERIC
    context_lengths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, body: bytes) -> Listing:
        """Raises: UpstreamError for what is no list of models."""
        try:
            said = msgspec.json.decode(body)
            entries = [entry for entry in said["data"] if isinstance(entry, dict)][:MAX_MODELS]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
            raise UpstreamError("The server's list of models makes no sense") from None
        served: dict[str, ServedModel] = {}
        for entry in entries:
            name = entry.get("id")
            if isinstance(name, str) and names.is_safe(name):
                served[name] = ServedModel(name, _context_length(entry), _capabilities(entry))
        return cls(
            tuple(served.values()),
            dialect_of(entries[0]) if entries else GENERIC,
            {model.id: model.context_length for model in served.values() if model.context_length},
        )


def _capabilities(entry: Mapping[str, Any]) -> tuple[Capability, ...] | None:
    """What another instance of this service says of a model; of others nothing is known."""
    said = entry.get("capabilities")
    if not isinstance(said, list):
        return None
    return tuple(capability for capability in CAPABILITIES if capability in said) or None


def _context_length(entry: Mapping[str, Any]) -> int | None:
    """vLLM's and SGLang's `max_model_len`, our own `context_length`, llama-server's `meta.n_ctx`."""
    meta = entry.get("meta")
    for value in (
        entry.get("max_model_len"),
        entry.get("context_length"),
        meta.get("n_ctx") if isinstance(meta, dict) else None,
    ):
        if type(value) is int and 0 < value < 1 << 31:
            return value
    return None
