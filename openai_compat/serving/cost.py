"""What a request costs, and whether it may: the card's limit on the price, the caller's budget.

Only clouds take money. What runs here, or on a server whose address the operator gave, is never refused for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from backends.errors import BackendUnavailable, UnsupportedParameter
from backends.types import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from models.card import Price, RemoteSource
from models.catalogue import Catalogue
from openai_compat.principals import Principal
from openai_compat.serving.gateway import CLOUDS, Gateway, Target

PRICE_RETRY_S: Final = 60.0
"""Prices come from the backend's list, which it may not have given yet."""
OFFERS_RETRY_S: Final = 5.0
CHARS_PER_TOKEN: Final = 4
"""Of an English text, roughly: for a prompt that nobody has counted."""
TOKENS_PER_PICTURE: Final = 1000
"""What clouds count for a photograph, roughly, whatever its bytes are."""


async def require_budget(gateway: Gateway, caller: Principal | None, target: Target) -> None:
    """For a caller with a budget. What has no price cannot be counted, so it is not paid for.

    Raises: QuotaExceeded; UnsupportedParameter when the price is not known; BackendUnavailable when the prices have not
    come yet, or nobody can say what the caller spent.
    """
    if target.kind not in CLOUDS or caller is None or gateway.budgets.limit_of(caller) is None:
        return
    await gateway.budgets.check(caller)
    if price_of(gateway.catalogue, target) is None:
        message = f"The price of the model {target.card.id!r} is not known, and this caller has a budget"
        if not gateway.catalogue.has_offers(target.kind):
            raise BackendUnavailable(message, retry_after_s=OFFERS_RETRY_S)
        raise UnsupportedParameter(message, param="model")


def require_price(gateway: Gateway, target: Target) -> None:
    """Raises: BackendUnavailable when the price is above the card's limit, or not known."""
    if target.card.max_price is not None and target.kind in CLOUDS:
        _require_price(gateway.catalogue, target, target.card.max_price)


def price_of(catalogue: Catalogue, target: Target) -> Price | None:
    """The card's own price, else the one the backend lists for it."""
    if target.card.price is not None:
        return target.card.price
    for kind, source in target.card.sources.items():
        if kind == target.kind and isinstance(source, RemoteSource):
            offered = catalogue.offered(kind, source.name)
            return offered.price if offered is not None else None
    return None


def estimate_usd(catalogue: Catalogue, target: Target, request: GenerationRequest, num_tokens: int) -> float:
    """What an answer cost that ended before its usage was known: `num_tokens` of it came, and its prompt is taken to
    have a token for every four characters. 0.0 where there is no price."""
    price = price_of(catalogue, target) if target.kind in CLOUDS else None
    if price is None:
        return 0.0
    prompt_tokens = sum(map(_tokens_about, request.prompts))
    return (prompt_tokens * price.prompt + num_tokens * price.completion) / 1e6


def estimate_inputs_usd(catalogue: Catalogue, target: Target, inputs: Iterable[Prompt]) -> float:
    """The same for a call that gives no text: only what it was given costs something."""
    price = price_of(catalogue, target) if target.kind in CLOUDS else None
    return sum(map(_tokens_about, inputs)) * price.prompt / 1e6 if price is not None else 0.0


def usd_text(cost_usd: float) -> str:
    """Plain decimals, as many as there are: a token may cost 1e-7 dollars."""
    return f"{cost_usd:.12f}".rstrip("0").rstrip(".")


def _require_price(catalogue: Catalogue, target: Target, limit: Price) -> None:
    price = price_of(catalogue, target)
    name = target.card.id
    if price is None:
        raise BackendUnavailable(
            f"The price of the model {name!r} is not known, and its card limits it",
            retry_after_s=PRICE_RETRY_S,
        )
    if price.prompt > limit.prompt or price.completion > limit.completion:
        raise BackendUnavailable(
            f"The model {name!r} costs more than its card allows: {price.prompt:g} and {price.completion:g} US dollars "
            f"for a million tokens of prompt and answer, at most {limit.prompt:g} and {limit.completion:g}",
            retry_after_s=PRICE_RETRY_S,
        )


def _tokens_about(prompt: Prompt) -> int:
    if isinstance(prompt, ChatPrompt):
        chars = sum(map(_chars, prompt.messages)) + _chars(prompt.tools)
        return math.ceil(chars / CHARS_PER_TOKEN)
    if isinstance(prompt, TextPrompt):
        return math.ceil(len(prompt.text) / CHARS_PER_TOKEN)
    return len(prompt.token_ids)


def _chars(value: object) -> int:
    """Of the texts in a message, without its keys."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        if value.get("type") == "image_url":
            return TOKENS_PER_PICTURE * CHARS_PER_TOKEN
        return sum(map(_chars, value.values()))
    if isinstance(value, list):
        return sum(map(_chars, value))
    return 0
