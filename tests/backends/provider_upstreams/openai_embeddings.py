"""OpenAI's embeddings as its API reference describes them, and Cohere's rerank."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from typing import Any

from backends.fake import tokens
from backends.fake.embedding import _vector
from tests.backends.provider_upstreams.openai_format import error
from tests.backends.provider_upstreams.server import Call, Wire


@dataclass(slots=True)
class Embedder:
    """Vectors of the words of a text. `refusal`: status and body instead of an answer."""

    context_length: int = 8192
    refusal: tuple[int, Any] | None = None
    reports_usage: bool = True
    cost: float | None = None
    """Told in the usage, as OpenRouter does."""
    holds: bool = False
    """It never answers."""

    async def __call__(self, call: Call, wire: Wire) -> None:
        if self.holds:
            await call.wait_until_ended(60)
        elif self.refusal is not None:
            await wire.json(*self.refusal)
        elif call.path.endswith("/embeddings"):
            await self._embed(call.body, wire)
        elif call.path.endswith("/rerank"):
            await self._rerank(call.body, wire)
        else:
            await wire.json(404, error(f"Unknown path {call.path}", kind="invalid_request_error"))

    async def _embed(self, body: dict[str, Any], wire: Wire) -> None:
        given = body["input"]
        inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        ids = [list(one) if isinstance(one, list) else _ids(one) for one in inputs]
        longest = max(map(len, ids))
        if longest > self.context_length:
            message = (
                f"This model's maximum context length is {self.context_length} tokens, however you requested {longest} "
                f"tokens ({longest} in your prompt; 0 for the completion). Please reduce your prompt."
            )
            await wire.json(400, error(message, kind="invalid_request_error"))
            return
        vectors = [_vector(one, 64) for one in ids]
        if body.get("encoding_format") == "base64":
            written: list[Any] = [base64.b64encode(struct.pack("<64f", *one)).decode() for one in vectors]
        else:
            written = vectors
        data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(written)]
        count: float = sum(map(len, ids)) if self.reports_usage else 0
        usage = {"prompt_tokens": count, "total_tokens": count}
        if self.cost is not None:
            usage["cost"] = self.cost
        await wire.json(200, {"object": "list", "data": data, "model": body["model"], "usage": usage})

    async def _rerank(self, body: dict[str, Any], wire: Wire) -> None:
        words = set(re.findall(r"\w+", body["query"]))
        scores = [
            (len(words & set(re.findall(r"\w+", document))) / len(words), index)
            for index, document in enumerate(body["documents"])
        ]
        results = [{"index": i, "relevance_score": score} for score, i in sorted(scores, reverse=True)]
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        await wire.json(200, {"id": "r1", "results": results, "meta": meta})


def _ids(text: str) -> list[int]:
    return [tokens.token_id(token.strip()) for token in tokens.split(text)]
