"""From a checked chat request to an exchange with a backend."""

from __future__ import annotations

from backends.types import ChatPrompt, GenerationRequest
from openai_compat.schemas.chat import ChatRequest
from openai_compat.serving.answers import ChatAnswer, engine_request_id
from openai_compat.serving.exchange import Exchange
from openai_compat.serving.gateway import Gateway, Target, refuse, require_capability
from openai_compat.serving.messages import normalise
from openai_compat.serving.sampling import resolve


def serve_chat(gateway: Gateway, asked: ChatRequest, request_id: str) -> Exchange:
    """Pick the model, judge what only the model can judge, and prepare the answer.

    Raises: BackendNotAvailable, UnknownModel, UnsupportedParameter.
    """
    target = gateway.resolve(asked.model, asked.backend)
    card = target.card
    require_capability(card, "chat", what="chat")
    refuse(asked.refused, card)
    prompt = ChatPrompt(
        messages=normalise(asked.messages, vision="vision" in card.capabilities, model=card.id),
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        template_kwargs=_template_kwargs(gateway, asked, target),
    )
    sampling = resolve(asked.sampling, card)
    answer = ChatAnswer(
        model=card.id,
        backend=target.kind,
        num_choices=asked.n,
        with_logprobs=sampling.logprobs is not None,
        include_usage=asked.include_usage,
    )
    request = GenerationRequest(
        request_id=engine_request_id(request_id, answer),
        model=card.id,
        prompts=(prompt,),
        sampling=sampling,
        n=asked.n,
        stream=asked.stream,
    )
    return Exchange(gateway, target, request, answer, asked.ignored)


def _template_kwargs(gateway: Gateway, asked: ChatRequest, target: Target) -> dict[str, object]:
    """A reasoning model on vLLM answers directly unless the caller says otherwise, key by key."""
    if target.kind == "vllm" and gateway.config.vllm_disable_thinking:
        return {"enable_thinking": False, **asked.template_kwargs}
    return asked.template_kwargs
