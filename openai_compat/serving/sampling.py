"""Sampling parameters of one request: the request's own over the card's over the service's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import randbits
from typing import Any, Final

import msgspec

from backends.types import SamplingParams
from models.card import ModelCard, SamplingDefaults
from openai_compat.serving.gateway import CLOUDS, Target

SEED_BITS: Final = 31
"""Every server and every JSON reader takes such a number as it is."""
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


def with_a_seed(sampling: SamplingParams, target: Target) -> SamplingParams:
    """With a seed drawn here where the caller gave none and there is something to draw, so that a receipt can tell it,
    and so that the engine takes nothing from a cache that would not be computed the same again. What clouds make of a
    seed is theirs to say; some refuse it."""
    if sampling.seed is not None or sampling.temperature == 0 or target.kind in CLOUDS:
        return sampling
    return msgspec.structs.replace(sampling, seed=randbits(SEED_BITS))


def _card_defaults(defaults: SamplingDefaults) -> dict[str, Any]:
    return {name: value for name in _CARD_FIELDS if (value := getattr(defaults, name)) is not None}
