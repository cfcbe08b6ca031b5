"""Tokens and their price: as the provider reports them, else counted here and marked so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from backends.litellm.deployment import Deployment
from backends.litellm.upgrades import CHANGED, tell
from backends.types import ChatPrompt, Prompt, TextPrompt, Usage


@dataclass(slots=True)
class Tokens:
    """Of one call."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    is_estimated: bool = False
    cost_usd: float | None = None


def reported(usages: Iterable[Any]) -> Tokens | None:
    """What the provider reported, None if nothing. Of several reports the largest counts, number by number: a stream of
    Anthropic tells the prompt first and the answer last, both as totals so far."""
    found: Tokens | None = None
    for usage in usages:
        if usage is None or type(usage).__name__ == "UnreportedUsage":
            continue
        one = _read(usage)
        if found is None:
            found = one
            continue
        for name in ("prompt", "completion", "cached", "reasoning"):
            setattr(found, name, max(getattr(found, name), getattr(one, name)))
        found.cost_usd = one.cost_usd if one.cost_usd is not None else found.cost_usd
    return found if found is not None and (found.prompt or found.completion) else None


def _read(usage: Any) -> Tokens:
    cost = _get(usage, "cost")
    return Tokens(
        prompt=_whole(_get(usage, "prompt_tokens")),
        completion=_whole(_get(usage, "completion_tokens")),
        cached=_whole(_get(_get(usage, "prompt_tokens_details"), "cached_tokens")),
        reasoning=_whole(_get(_get(usage, "completion_tokens_details"), "reasoning_tokens")),
        cost_usd=float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
    )


def _get(thing: Any, name: str) -> Any:
    """Of an object or a mapping: LiteLLM hands on both."""
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def estimated(sdk: Any, deployment: Deployment, prompt: Prompt, said: Sequence[str]) -> Tokens:
    """Counted with LiteLLM's tokenizer for the model, or the nearest it has."""
    completion = sum(count_text(sdk, deployment, text) for text in said if text)
    return Tokens(count_prompt(sdk, deployment, prompt), completion, is_estimated=True)


def count_prompt(sdk: Any, deployment: Deployment, prompt: Prompt) -> int:
    if isinstance(prompt, ChatPrompt):
        tools = {"tools": prompt.tools} if prompt.tools else {}
        # Otherwise it fetches the pictures to see how large they are.
        flat = {"use_default_image_token_count": True}
        return int(sdk.token_counter(model=deployment.model, messages=prompt.messages, **tools, **flat))
    if isinstance(prompt, TextPrompt):
        return count_text(sdk, deployment, prompt.text)
    return len(prompt.token_ids)


def count_text(sdk: Any, deployment: Deployment, text: str) -> int:
    return int(sdk.token_counter(model=deployment.model, text=text)) if text else 0


def price(sdk: Any, deployment: Deployment, usage: Any, tokens: Tokens) -> float | None:
    """US dollars: by the card, else as the provider says, else by LiteLLM's map; None where none of them knows."""
    if deployment.price is not None:
        return tokens.prompt * deployment.price[0] + tokens.completion * deployment.price[1]
    if tokens.cost_usd is not None:
        return tokens.cost_usd
    if not deployment.is_known:
        return None
    try:
        prompt, completion = sdk.cost_per_token(
            model=deployment.model,
            custom_llm_provider=deployment.provider,
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
            cache_read_input_tokens=tokens.cached,
            **({"usage_object": usage} if usage is not None else {}),
        )
    except Exception as error:
        tell("a model of its map has no price, and its use is not counted", error)
        return None
    return float(prompt + completion)


def price_of_ranks(sdk: Any, deployment: Deployment, answer: Any) -> float | None:
    """US dollars by LiteLLM's map: most providers charge for a search, whatever its tokens."""
    billed = _get(_get(answer, "meta"), "billed_units")
    if not billed:
        return None
    try:
        costs = sdk.cost_calculator.rerank_cost(
            model=deployment.model, custom_llm_provider=deployment.provider, billed_units=billed
        )
    except Exception as error:
        if isinstance(error, CHANGED):
            tell("a search has no price, and is not counted", error)
        return None
    return float(sum(costs))


def total(per_prompt: Sequence[Sequence[Tokens]]) -> Usage:
    """The usage of a request: each prompt counts once, whatever its number of calls; every call was paid for."""
    calls = [tokens for of_prompt in per_prompt for tokens in of_prompt]
    costs = [tokens.cost_usd for tokens in calls if tokens.cost_usd is not None]
    return Usage(
        prompt_tokens=sum(max((t.prompt for t in of_prompt), default=0) for of_prompt in per_prompt),
        completion_tokens=sum(tokens.completion for tokens in calls),
        cached_tokens=sum(max((t.cached for t in of_prompt), default=0) for of_prompt in per_prompt),
        reasoning_tokens=sum(tokens.reasoning for tokens in calls),
        is_estimated=any(tokens.is_estimated for tokens in calls),
        cost_usd=sum(costs) if costs else None,
    )
