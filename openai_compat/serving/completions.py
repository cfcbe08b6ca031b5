"""From a checked text completion request to an exchange with a backend."""

from __future__ import annotations

from backends.types import GenerationRequest, TextPrompt, TokenPrompt
from openai_compat.schemas.completions import CompletionRequest
from openai_compat.serving.answers import CompletionAnswer, engine_request_id
from openai_compat.serving.constraints import check_constraints
from openai_compat.serving.exchange import Exchange
from openai_compat.serving.gateway import Gateway, refuse, require_capability, require_features
from openai_compat.serving.sampling import resolve


def serve_completion(gateway: Gateway, asked: CompletionRequest, request_id: str) -> Exchange:
    """Pick the model, judge what only the model can judge, and prepare the answer.

    Raises: BackendNotAvailable, UnknownModel, UnsupportedParameter, InvalidGrammar, ValidationFailed (no default
    model).
    """
    if asked.model is None:
        target = gateway.resolve_default(asked.backend)
    else:
        target = gateway.resolve(asked.model, asked.backend)
    card = target.card
    require_capability(card, "completion", "chat", what="text completion")
    refuse(asked.refused, card)
    require_features(asked.needed, target)
    check_constraints(asked)
    prompts = tuple(
        TextPrompt(text=prompt) if isinstance(prompt, str) else TokenPrompt(token_ids=prompt)
        for prompt in asked.prompts
    )
    sampling = resolve(asked.sampling, card)
    answer = CompletionAnswer(
        model=card.id,
        backend=target.kind,
        num_choices=len(prompts) * asked.n,
        with_logprobs=sampling.logprobs is not None,
        include_usage=asked.include_usage,
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
    )
    return Exchange(gateway, target, request, answer, asked.ignored)
