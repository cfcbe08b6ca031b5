"""The models of LiteLLM's own map that this process has a key for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from backends.litellm.deployment import capabilities_of, count_of
from backends.types import OfferedModel


def offered_models(sdk: Any, providers: Iterable[str]) -> Iterator[OfferedModel]:
    """One per name, in the providers' order. Without patterns (`ft:…`, `…/*`) and what is no language model."""
    seen: set[str] = set()
    for provider in providers:
        for name in sorted(sdk.utils.bundled_provider_models(provider)):
            info = sdk.model_cost.get(name)
            if name in seen or info is None or "*" in name or name.startswith("ft:"):
                continue
            seen.add(name)
            capabilities = capabilities_of(info)
            context_length = count_of(info.get("max_input_tokens") or info.get("max_tokens"))
            price = _price(info)
            # The map also holds prices of what is no model, such as a container; those have neither.
            if capabilities and (context_length is not None or price is not None):
                yield OfferedModel(
                    id=_name_for(sdk, provider, name),
                    context_length=context_length,
                    capabilities=capabilities,
                    owned_by=provider,
                    price=price,
                )


def _name_for(sdk: Any, provider: str, name: str) -> str:
    """The name by which LiteLLM finds this provider: some of the map's belong to another one when they stand alone."""
    try:
        found = sdk.get_llm_provider(name)[1]
    except Exception:
        found = None
    return name if found == provider else f"{provider}/{name}"


def _price(info: Mapping[str, Any]) -> tuple[float, float] | None:
    costs = [info.get("input_cost_per_token"), info.get("output_cost_per_token")]
    if not all(isinstance(cost, int | float) and cost >= 0 for cost in costs):
        return None
    prompt, completion = (round(float(cost or 0) * 1e6, 6) for cost in costs)
    return prompt, completion
