"""From a checked chat request to an exchange with a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response
from starlette.types import Scope

from backends.types import ChatPrompt, Feature, GenerationRequest
from openai_compat.media.intake import has_pictures
from openai_compat.receipts.document import Asked, fetched_pictures, rewritten_fields, rewritten_messages
from openai_compat.record import record_of
from openai_compat.schemas.chat import ChatRequest
from openai_compat.serving.answers import ChatAnswer, engine_request_id
from openai_compat.serving.constraints import check_constraints
from openai_compat.serving.exchange import Exchange
from openai_compat.serving.fallback import Fallbacks, is_bound_to_vocabulary
from openai_compat.serving.gateway import (
    Gateway,
    Target,
    has_feature,
    privacy_for,
    refuse,
    require_capability,
    require_features,
)
from openai_compat.serving.messages import idle_detail, normalise
from openai_compat.serving.pictures import Pictured
from openai_compat.serving.plan import Plan
from openai_compat.serving.sampling import resolve, with_a_seed

ROUTE: Final = "/v1/chat/completions"


def serve_chat(gateway: Gateway, asked: ChatRequest, scope: Scope) -> Response:
    """Pick the model, judge what only the model can judge, and prepare the answer.

    Raises: BackendNotAvailable, UnknownModel, UnsupportedParameter, InvalidGrammar.
    """
    exchange = _exchange(gateway, asked, scope)
    if not has_pictures(asked.messages):
        return exchange
    # Everything else was judged before a picture is looked at, let alone fetched.
    return Pictured(
        gateway.media, asked.messages, lambda seen: _exchange(gateway, replace(asked, messages=seen), scope)
    )


def _exchange(gateway: Gateway, asked: ChatRequest, scope: Scope) -> Exchange:
    record = record_of(scope)
    privacy = privacy_for(scope, asked.privacy)
    target = gateway.resolve(asked.model, asked.backend, privacy)
    make = partial(plan_chat, gateway, asked, record.request_id)
    plan = make(target)
    check_constraints(asked)
    fallbacks = None
    if target.card.fallbacks and asked.backend is None and not is_bound_to_vocabulary(plan.request):
        fallbacks = Fallbacks(gateway, target.card, make, privacy=privacy, caller=record.caller)
    return Exchange(gateway, plan, fallbacks)


def plan_chat(gateway: Gateway, asked: ChatRequest, request_id: str, target: Target) -> Plan:
    """The request as the target is to be asked it. Raises: UnsupportedParameter."""
    card = target.card
    require_capability(card, "chat", what="chat")
    refuse(asked.refused, card)
    needed, ignored = _without_idle_effort(asked, target)
    require_features(needed, target)
    takes_tools = has_feature(target, "tools")
    effort = asked.reasoning_effort if has_feature(target, "reasoning_effort") else None
    prompt = ChatPrompt(
        messages=normalise(asked.messages, target),
        tools=asked.tools if takes_tools else None,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        template_kwargs=template_kwargs(gateway, asked.template_kwargs, target, effort=effort),
    )
    sampling = resolve(asked.sampling, card)
    if asked.receipt is not None:
        sampling = with_a_seed(sampling, target)
    answer = ChatAnswer(
        model=card.id,
        backend=target.kind,
        num_choices=asked.n,
        with_logprobs=sampling.logprobs is not None,
        include_usage=asked.include_usage,
        with_receipt=asked.receipt is not None,
    )
    request = GenerationRequest(
        request_id=engine_request_id(request_id, answer),
        model=card.id,
        prompts=(prompt,),
        sampling=sampling,
        n=asked.n,
        stream=asked.stream,
        tool_choice=asked.tool_choice if takes_tools else None,
        parallel_tool_calls=asked.parallel_tool_calls if takes_tools else None,
        response_format=asked.response_format,
        structured_outputs=asked.structured_outputs,
        reasoning_effort=effort,
        wants_provenance=asked.receipt is not None,
    )
    ignored = (*ignored, *idle_detail(asked.messages, target))
    return Plan(target, request, answer, ignored, _receipt(asked, ignored, request))


def _receipt(asked: ChatRequest, ignored: tuple[str, ...], request: GenerationRequest) -> Asked | None:
    """The part of a receipt that is known by now."""
    if asked.receipt is None:
        return None
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    told = rewritten_fields(asked.receipt, model=request.model, sampling=request.sampling)
    told += rewritten_messages(asked.messages, prompt.messages)
    told += fetched_pictures(asked.receipt["messages"], asked.messages)
    for name, value in prompt.template_kwargs.items():
        if name not in asked.template_kwargs:
            told.append({"field": f"chat_template_kwargs.{name}", "from": None, "to": value})
    return Asked(route=ROUTE, request=asked.receipt, ignored=ignored, rewritten=tuple(told))


def _without_idle_effort(asked: ChatRequest, target: Target) -> tuple[Mapping[str, Feature], tuple[str, ...]]:
    """What the target must have, and what is ignored: to a model that does not reason an effort says nothing."""
    name: Feature = "reasoning_effort"
    if asked.reasoning_effort is None or has_feature(target, name) or "reasoning" in target.card.capabilities:
        return asked.needed, asked.ignored
    return {key: value for key, value in asked.needed.items() if key != name}, (*asked.ignored, name)


def template_kwargs(
    gateway: Gateway, asked: dict[str, object], target: Target, *, effort: str | None = None
) -> dict[str, object]:
    """What the template is told. A reasoning model on vLLM answers directly unless the caller says otherwise, key by
    key, or by an `effort`: vLLM makes `enable_thinking` of it, but would believe ours."""
    if target.kind == "vllm" and gateway.config.vllm_disable_thinking and effort in (None, "none"):
        return {"enable_thinking": False, **asked}
    return asked
