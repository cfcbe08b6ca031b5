"""Embeddings and ranks of a provider: one call, asked again while that is safe.

`dimensions` is not passed on: few providers know it, and cutting here gives the same everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from backends.embedding import EmbeddingInput, EmbeddingRequest, Embeddings, Ranking, RerankRequest, Score
from backends.errors import (
    BackendTimeout,
    ContextLengthExceeded,
    NotSupported,
    UnsupportedParameter,
    UpstreamError,
)
from backends.litellm import patience as waits
from backends.litellm import transport, usage
from backends.litellm.call import Road
from backends.litellm.deployment import Deployment
from backends.litellm.provenance import Testimony, provenance_of
from backends.litellm.transport import Connection
from backends.litellm.watch import Tail
from backends.types import TokenPrompt
from backends.vectors import check_dimensions, pack, read_vector


async def embed(road: Road, deployment: Deployment, request: EmbeddingRequest, deadline: float) -> Embeddings:
    """Raises: what the translator gives; UpstreamError for an answer without a vector for each input."""
    _require(deployment, "embedding", "makes no embeddings", request.model)
    inputs = [
        prompt.token_ids if isinstance(prompt, TokenPrompt) else prompt.text for prompt in request.inputs
    ]
    testimony = Testimony()
    try:
        answer, said_usd = await _asked(
            road,
            deployment,
            request.model,
            deadline,
            road.sdk.aembedding,
            testimony=testimony,
            input=inputs,
        )
    except ContextLengthExceeded as error:
        error.param = "input"
        raise
    vectors: list[bytes | None] = [None] * len(inputs)
    for position, entry in enumerate(_list(answer, "data")):
        vector = read_vector(_get(entry, "embedding"))
        check_dimensions(request.dimensions, len(vector))
        index = _get(entry, "index")
        index = position if index is None else index
        if type(index) is not int or not 0 <= index < len(inputs):
            raise UpstreamError(f"The provider {deployment.provider!r} embedded other texts than there were")
        vectors[index] = pack(vector, request.dimensions)
    whole = tuple(vector for vector in vectors if vector is not None)
    if len(whole) < len(inputs):
        raise UpstreamError(f"The provider {deployment.provider!r} gave fewer vectors than there are inputs")
    num_tokens = _count(_get(_get(answer, "usage"), "prompt_tokens"))
    if not num_tokens:
        num_tokens = await asyncio.to_thread(_estimate, road, deployment, request.inputs)
    told = provenance_of(deployment, None, [testimony]) if request.wants_provenance else None
    return Embeddings(whole, num_tokens, _cost(road, deployment, answer, num_tokens, said_usd), told)


async def rerank(road: Road, deployment: Deployment, request: RerankRequest, deadline: float) -> Ranking:
    """Raises: as `embed`; NotSupported where LiteLLM has no such call for the provider."""
    _require(deployment, "rerank", "ranks no documents", request.model)
    if not hasattr(road.sdk, "arerank"):
        raise NotSupported(f"The provider {deployment.provider!r} does not support reranking")
    answer, said_usd = await _asked(
        road,
        deployment,
        request.model,
        deadline,
        road.sdk.arerank,
        testimony=Testimony(),
        query=request.query,
        documents=list(request.documents),
        return_documents=False,
    )
    scores: dict[int, Score] = {}
    for entry in _list(answer, "results"):
        index, value = _get(entry, "index"), _get(entry, "relevance_score")
        if type(index) is not int or not 0 <= index < len(request.documents):
            raise UpstreamError(
                f"The provider {deployment.provider!r} ranked other documents than there were"
            )
        if not isinstance(value, int | float):
            raise UpstreamError(f"The provider {deployment.provider!r} answered without a score")
        scores[index] = Score(index, float(value))
    if len(scores) < len(request.documents):
        raise UpstreamError(
            f"The provider {deployment.provider!r} gave fewer scores than there are documents"
        )
    best = sorted(scores.values(), key=lambda score: -score.score)
    num_tokens = _count(_get(_get(_get(answer, "meta"), "tokens"), "input_tokens"))
    if not num_tokens and deployment.price is not None:
        num_tokens = await asyncio.to_thread(_estimate_ranks, road, deployment, request)
    return Ranking(
        tuple(best[: request.top_n]), num_tokens, _cost(road, deployment, answer, num_tokens, said_usd)
    )


def _require(deployment: Deployment, mode: str, what_not: str, model: str) -> None:
    """A model that LiteLLM's map does not have is tried."""
    if deployment.is_known and deployment.mode != mode:
        raise UnsupportedParameter(f"The model {model!r} {what_not}", param="model")


async def _asked(
    road: Road,
    deployment: Deployment,
    model: str,
    deadline: float,
    call: Callable[..., Awaitable[Any]],
    *,
    testimony: Testimony,
    **arguments: Any,
) -> tuple[Any, float | None]:
    """The answer of `call`, and what it says that it cost. Cancelling it closes the connection."""
    road.internal.set(True)
    attempt = 0
    while True:
        road.cooldowns.check(deployment.label)
        connection = Connection(deployment.provider)
        connection.tail = tail = Tail()
        transport.current.set(connection)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await call(
                    model=deployment.model,
                    custom_llm_provider=deployment.provider,
                    timeout=road.patience.request_timeout_s,
                    max_retries=0,
                    num_retries=0,
                    **arguments,
                )
        except Exception as exc:
            error = road.translator.translate(exc, deployment, connection, model=model)
        else:
            road.cooldowns.succeeded(deployment.label)
            testimony.retries = attempt
            testimony.hear(answer)
            return answer, tail.cost_usd
        finally:
            connection.close()
        road.cooldowns.failed(deployment.label, error)
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            limit_s = road.patience.request_timeout_s
            raise BackendTimeout(
                f"The provider {deployment.provider!r} did not finish within {limit_s:g} s"
            ) from None
        pause_s = waits.delay_s(attempt, error)
        is_last = attempt >= road.patience.max_retries or connection.exceeded is not None
        if is_last or not waits.is_transient(error) or pause_s > min(waits.WAITS_FOR_S, left_s):
            raise error from None
        await asyncio.sleep(pause_s)
        attempt += 1


def _estimate(road: Road, deployment: Deployment, inputs: Sequence[EmbeddingInput]) -> int:
    return sum(usage.count_prompt(road.sdk, deployment, prompt) for prompt in inputs)


def _estimate_ranks(road: Road, deployment: Deployment, request: RerankRequest) -> int:
    """Each document is read together with the query."""
    query = usage.count_text(road.sdk, deployment, request.query)
    documents = sum(usage.count_text(road.sdk, deployment, document) for document in request.documents)
    return query * len(request.documents) + documents


def _cost(
    road: Road, deployment: Deployment, answer: Any, num_tokens: int, said_usd: float | None
) -> float | None:
    """By the card, else as the provider says, else by LiteLLM's map, which prices ranks by the search."""
    if deployment.price is None:
        if said_usd is not None:
            return said_usd
        if deployment.is_known and deployment.mode == "rerank":
            found = usage.price_of_ranks(road.sdk, deployment, answer)
            if found is not None or not num_tokens:
                return found
    return usage.price(road.sdk, deployment, None, usage.Tokens(prompt=num_tokens))


def _list(answer: Any, name: str) -> list[Any]:
    found = _get(answer, name)
    if not isinstance(found, list):
        raise UpstreamError("The provider's answer makes no sense")
    return found


def _get(thing: Any, name: str) -> Any:
    """Of an object or a mapping: LiteLLM hands on both."""
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0
