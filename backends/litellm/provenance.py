"""What LiteLLM and the provider say of themselves in a receipt."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from backends.litellm.parameters import NEUTRAL, PLAIN
from backends.provenance import Provenance
from backends.types import SamplingParams

if TYPE_CHECKING:
    from backends.litellm.deployment import Deployment

_MAX_CHARS: Final = 256
"""Of a name that a provider gives."""
_LIMITS: Final = ("max_tokens", "max_completion_tokens")


@functools.cache
def engine_version() -> str:
    return importlib.metadata.version("litellm")


class Testimony:
    """What one call's answers said of who made them, and what the provider was sent."""

    __slots__ = ("fingerprints", "models", "retries", "sent")

    def __init__(self) -> None:
        self.models: dict[str, None] = {}
        self.fingerprints: dict[str, None] = {}
        self.sent: Mapping[str, Any] = {}
        self.retries = 0

    def hear(self, answer: Any) -> None:
        """Of an answer, or of a chunk of one."""
        for name, said in (("model", self.models), ("system_fingerprint", self.fingerprints)):
            value = getattr(answer, name, None)
            if isinstance(value, str) and value:
                said[value[:_MAX_CHARS]] = None


def provenance_of(
    deployment: Deployment, sampling: SamplingParams | None, calls: Iterable[Testimony]
) -> Provenance:
    """`sampling`: None for what is no generation. The address that was called is in none of it."""
    calls = list(calls)
    models = dict.fromkeys(model for call in calls for model in call.models)
    fingerprints = dict.fromkeys(one for call in calls for one in call.fingerprints)
    used: dict[str, Any] = {}
    if sampling is not None:
        for call in calls:
            used |= used_otherwise(sampling, call.sent)
    return Provenance(
        engine="LiteLLM",
        engine_version=engine_version(),
        provider=deployment.provider,
        provider_model=", ".join(models) or deployment.model,
        system_fingerprint=", ".join(fingerprints) or None,
        context_length=deployment.context_length,
        why_not=f"the provider {deployment.provider!r} does not promise the same answer to the same request",
        used=used,
        retries=sum(call.retries for call in calls),
    )


def used_otherwise(sampling: SamplingParams, sent: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that the provider was not sent as they were; None: it was sent none."""
    extra = sent.get("extra_body")
    given = {**extra, **sent} if isinstance(extra, Mapping) else sent
    used: dict[str, Any] = {}
    for name in dict.fromkeys((*PLAIN, *NEUTRAL)):
        value = getattr(sampling, name)
        if name not in given and (name not in NEUTRAL or value != NEUTRAL[name]):
            used[name] = None
    if sampling.max_tokens is not None:
        limit = next((sent[name] for name in _LIMITS if name in sent), None)
        if limit != sampling.max_tokens:
            used["max_tokens"] = limit
    return used
