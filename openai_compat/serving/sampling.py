"""Sampling parameters of one request: the request's own over the card's over the service's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from backends.types import SamplingParams
from models.card import ModelCard, SamplingDefaults

_CARD_FIELDS: Final = tuple(SamplingDefaults.model_fields)


def resolve(asked: Mapping[str, Any], card: ModelCard) -> SamplingParams:
    """Merge what the caller set with the card's defaults; `SamplingParams` itself holds the service's.

    A card's `max_tokens` never undercuts a caller's `min_tokens`.
    """
    merged = dict(_card_defaults(card.sampling))
    if merged.get("max_tokens", 0) < asked.get("min_tokens", 0):
        merged.pop("max_tokens", None)
    merged.update(asked)
    for name in ("stop", "stop_token_ids"):
        if name in merged:
            merged[name] = tuple(merged[name])
    return SamplingParams(**merged, explicit=frozenset(asked))


def _card_defaults(defaults: SamplingDefaults) -> dict[str, Any]:
    return {name: value for name in _CARD_FIELDS if (value := getattr(defaults, name)) is not None}
