"""From a checked text completion request to an exchange with a backend."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.types import Scope

from backends.types import GenerationRequest, TextPrompt, TokenPrompt
from openai_compat.receipts.document import Asked, rewritten_fields
from openai_compat.record import record_of
from openai_compat.schemas.completions import CompletionRequest
from openai_compat.serving.answers import CompletionAnswer, engine_request_id
from openai_compat.serving.constraints import check_constraints
from openai_compat.serving.exchange import Exchange
from openai_compat.serving.fallback import Fallbacks, is_bound_to_vocabulary
from openai_compat.serving.gateway import (
    Gateway,
    Target,
    privacy_for,
    refuse,
    require_capability,
    require_features,
)
from openai_compat.serving.plan import Plan
from openai_compat.serving.sampling import resolve, with_a_seed

ROUTE: Final = "/v1/completions"


def serve_completion(gateway: Gateway, asked: CompletionRequest, scope: Scope) -> Exchange:
    """Pick the model, judge what only the model can judge, and prepare the answer.

    Raises: BackendNotAvailable, UnknownModel, UnsupportedParameter, InvalidGrammar, ValidationFailed (no default
    model).
    """
    record = record_of(scope)
    privacy = privacy_for(scope, asked.privacy)
    if asked.model is None:
        target = gateway.resolve_default(asked.backend, privacy)
    else:
        target = gateway.resolve(asked.model, asked.backend, privacy)
    make = partial(plan_completion, asked, record.request_id)
    plan = make(target)
    check_constraints(asked)
    fallbacks = None
    if target.card.fallbacks and asked.backend is None and not is_bound_to_vocabulary(plan.request):
        fallbacks = Fallbacks(gateway, target.card, make, privacy=privacy, caller=record.caller)
    return Exchange(gateway, plan, fallbacks)


def plan_completion(asked: CompletionRequest, request_id: str, target: Target) -> Plan:
    """The request as the target is to be asked it. Raises: UnsupportedParameter."""
    card = target.card
    require_capability(card, "completion", "chat", what="text completion")
    refuse(asked.refused, card)
    require_features(asked.needed, target)
    prompts = tuple(
        TextPrompt(text=prompt) if isinstance(prompt, str) else TokenPrompt(token_ids=prompt)
        for prompt in asked.prompts
    )
    sampling = resolve(asked.sampling, card)
    if asked.receipt is not None:
        sampling = with_a_seed(sampling, target)
    answer = CompletionAnswer(
        model=card.id,
        backend=target.kind,
        num_choices=len(prompts) * asked.n,
        with_logprobs=sampling.logprobs is not None,
        include_usage=asked.include_usage,
        with_receipt=asked.receipt is not None,
    )
    request = GenerationRequest(
        request_id=engine_request_id(request_id, answer),
        model=card.id,
        prompts=prompts,
        sampling=sampling,
        n=asked.n,
        stream=asked.stream,
        echo=asked.echo,
        response_format=asked.response_format,
        structured_outputs=asked.structured_outputs,
        suffix=asked.suffix,
        best_of=asked.best_of,
        wants_provenance=asked.receipt is not None,
    )
    receipt = None
    if asked.receipt is not None:
        told = rewritten_fields(asked.receipt, model=card.id, sampling=sampling)
        receipt = Asked(route=ROUTE, request=asked.receipt, ignored=asked.ignored, rewritten=tuple(told))
    return Plan(target, request, answer, asked.ignored, receipt)
