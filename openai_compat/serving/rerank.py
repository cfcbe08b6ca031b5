"""From a checked rerank or score request to its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from backends.embedding import Ranking, RerankRequest, Score
from backends.errors import BackendFailed
from backends.types import TextPrompt
from openai_compat.schemas.rerank import RerankBody, ScoreBody
from openai_compat.serving.calls import Call
from openai_compat.serving.gateway import Gateway, Target, privacy_for, require_capability

_encode = msgspec.json.Encoder().encode


async def serve_rerank(gateway: Gateway, asked: RerankBody, request: Request) -> Response:
    """Raises: BackendNotAvailable, UnknownModel, UnsupportedParameter, what `Call.run` and `Backend.rerank` raise."""
    target = gateway.resolve(asked.model, asked.backend, privacy_for(request.scope, asked.privacy))
    require_capability(target.card, "rerank", what="reranking")
    call = Call(gateway, target, request, _inputs([(asked.query, asked.documents)]))
    wanted = RerankRequest(
        request_id=call.record.request_id,
        model=target.card.id,
        query=asked.query,
        documents=asked.documents,
        top_n=asked.top_n,
    )
    found = await call.run(partial(_rank, target, wanted))
    await call.pay(found.cost_usd)
    results: list[dict[str, Any]] = []
    for score in found.scores:
        entry: dict[str, Any] = {"index": score.index, "relevance_score": score.score}
        if asked.returns_documents:
            entry["document"] = {"text": asked.documents[score.index]}
        results.append(entry)
    document = {
        "id": f"rerank-{call.record.request_id}",
        "model": target.card.id,
        "results": results,
        "usage": call.usage(found.prompt_tokens),
        "backend": target.kind,
    }
    return call.answer(_encode(document), prompt_tokens=found.prompt_tokens)


async def serve_score(gateway: Gateway, asked: ScoreBody, request: Request) -> Response:
    """Raises: as `serve_rerank`."""
    target = gateway.resolve(asked.model, asked.backend, privacy_for(request.scope, asked.privacy))
    require_capability(target.card, "rerank", what="scoring")
    call = Call(gateway, target, request, _inputs(asked.queries))
    wanted = [
        RerankRequest(
            request_id=call.record.request_id, model=target.card.id, query=query, documents=documents
        )
        for query, documents in asked.queries
    ]

    rankings = await call.run(partial(_rank_all, target, wanted))
    costs = [ranking.cost_usd for ranking in rankings if ranking.cost_usd is not None]
    await call.pay(sum(costs) if costs else None)
    scores = [score.score for ranking in rankings for score in sorted(ranking.scores, key=_index)]
    num_tokens = sum(ranking.prompt_tokens for ranking in rankings)
    document = {
        "id": f"score-{call.record.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": target.card.id,
        "data": [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)],
        "usage": call.usage(num_tokens),
        "backend": target.kind,
    }
    return call.answer(_encode(document), prompt_tokens=num_tokens)


async def _rank_all(target: Target, wanted: list[RerankRequest]) -> list[Ranking]:
    """All at once; the first error ends the others."""
    tasks = [asyncio.ensure_future(_rank(target, one)) for one in wanted]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _rank(target: Target, wanted: RerankRequest) -> Ranking:
    found = await target.backend.rerank(wanted)
    expected = min(len(wanted.documents), wanted.top_n or len(wanted.documents))
    indexes = {score.index for score in found.scores}
    if (
        len(found.scores) != expected
        or len(indexes) != expected
        or not indexes <= set(range(len(wanted.documents)))
    ):
        raise BackendFailed("The backend ranked other documents than there were")
    return found


def _index(score: Score) -> int:
    return score.index


def _inputs(queries: Iterable[tuple[str, Sequence[str]]]) -> Iterator[TextPrompt]:
    """Each document is read together with its query."""
    for query, documents in queries:
        for document in documents:
            yield TextPrompt(text=query)
            yield TextPrompt(text=document)
