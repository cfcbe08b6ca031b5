"""Embeddings and ranks of an OpenAI-compatible server.

`dimensions` is not passed on: vLLM refuses it for models that were not trained for it, others ignore it. It is done
here, the same on every server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from backends.embedding import EmbeddingInput, EmbeddingRequest, Embeddings, Ranking, RerankRequest, Score
from backends.errors import ContextLengthExceeded, ServiceError, UpstreamError
from backends.types import Prompt, TokenPrompt
from backends.vectors import check_dimensions, pack, read_vector

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Path and body to the answer's object."""
Count = Callable[[Prompt], Awaitable[int]]

_REQUESTED: Final = re.compile(r"requested (\d{1,12}) tokens")


async def embed(ask: Ask, count: Count, request: EmbeddingRequest, served_name: str) -> Embeddings:
    """Raises: what `ask` raises; UpstreamError for an answer without a vector for each input; InvalidParameter."""
    inputs = [
        prompt.token_ids if isinstance(prompt, TokenPrompt) else prompt.text for prompt in request.inputs
    ]
    body = {"model": served_name, "input": inputs, "encoding_format": "base64"}
    try:
        said = await ask("/v1/embeddings", body)
    except ContextLengthExceeded as error:
        raise await _with_numbers(error, request.inputs, count) from None
    vectors: list[bytes | None] = [None] * len(inputs)
    for entry in _entries(said, "data"):
        vector = read_vector(entry.get("embedding"))
        check_dimensions(request.dimensions, len(vector))
        vectors[_index(entry, len(inputs))] = pack(vector, request.dimensions)
    whole = tuple(vector for vector in vectors if vector is not None)
    if len(whole) < len(inputs):
        raise UpstreamError("The server's answer lacks vectors")
    return Embeddings(whole, _prompt_tokens(said))


async def rerank(ask: Ask, request: RerankRequest, served_name: str) -> Ranking:
    """Raises: what `ask` raises; UpstreamError for an answer without a score for each document that was asked for."""
    body = {"model": served_name, "query": request.query, "documents": list(request.documents)}
    try:
        said = await ask("/v1/rerank", body)
    except ContextLengthExceeded as error:
        error.param = "documents"
        raise
    scores: dict[int, Score] = {}
    for entry in _entries(said, "results"):
        index, value = _index(entry, len(request.documents)), entry.get("relevance_score")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UpstreamError("The server's score makes no sense")
        scores[index] = Score(index, float(value))
    if len(scores) < len(request.documents):
        raise UpstreamError("The server's answer lacks scores")
    best = sorted(scores.values(), key=lambda score: -score.score)
    return Ranking(tuple(best[: request.top_n]), _prompt_tokens(said))


async def _with_numbers(
    error: ContextLengthExceeded, inputs: tuple[EmbeddingInput, ...], count: Count
) -> ContextLengthExceeded:
    """The error with the size of the input that is too long: as the server said it, else counted by it."""
    found = _REQUESTED.search(error.message)
    num_tokens = error.prompt_tokens or (int(found[1]) if found else 0)
    if not num_tokens:
        longest = max(
            inputs, key=lambda one: len(one.token_ids if isinstance(one, TokenPrompt) else one.text)
        )
        try:
            num_tokens = await count(longest)
        except ServiceError:
            num_tokens = 0
    if not (num_tokens and error.context_length):
        error.param = "input"
        return error
    return ContextLengthExceeded(prompt_tokens=num_tokens, context_length=error.context_length, param="input")


def _entries(said: dict[str, Any], name: str) -> list[dict[str, Any]]:
    entries = said.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UpstreamError("The server's answer makes no sense")
    return entries


def _index(entry: dict[str, Any], count: int) -> int:
    index = entry.get("index")
    if type(index) is not int or not 0 <= index < count:
        raise UpstreamError("The server's answer names no input")
    return index


def _prompt_tokens(said: dict[str, Any]) -> int:
    usage = said.get("usage")
    if not isinstance(usage, dict):
        return 0
    counts = [usage.get("prompt_tokens"), usage.get("total_tokens")]
    return next((count for count in counts if type(count) is int and count >= 0), 0)
