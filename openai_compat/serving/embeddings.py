"""From a checked embedding request to its answer."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from backends.embedding import EmbeddingRequest, Embeddings
from backends.errors import BackendFailed
from backends.types import TextPrompt, TokenPrompt, Usage
from openai_compat.receipts.document import Asked, Done, Timing, receipt, rewritten_fields
from openai_compat.receipts.outputs import vector_entries
from openai_compat.schemas.embeddings import EmbeddingBody
from openai_compat.serving.calls import Call
from openai_compat.serving.gateway import Gateway, Target, privacy_for, require_capability

ROUTE: Final = "/v1/embeddings"
_VECTORS_AT_ONCE: Final = 64
"""Written between two turns of the event loop: about 1 ms for vectors of 384 numbers."""

_encode = msgspec.json.Encoder().encode


async def serve_embeddings(gateway: Gateway, asked: EmbeddingBody, request: Request) -> Response:
    """Raises: BackendNotAvailable, UnknownModel, UnsupportedParameter, what `Call.run` and `Backend.embed` raise."""
    target = gateway.resolve(asked.model, asked.backend, privacy_for(request.scope, asked.privacy))
    require_capability(target.card, "embeddings", what="embeddings")
    inputs = tuple(
        TextPrompt(text=item) if isinstance(item, str) else TokenPrompt(token_ids=item)
        for item in asked.inputs
    )
    call = Call(gateway, target, request, inputs)
    wanted = EmbeddingRequest(
        request_id=call.record.request_id,
        model=target.card.id,
        inputs=inputs,
        dimensions=asked.dimensions,
        wants_provenance=asked.receipt is not None,
    )
    found = await call.run(partial(target.backend.embed, wanted))
    await call.pay(found.cost_usd)
    if len(found.vectors) != len(wanted.inputs):
        raise BackendFailed("The backend gave another number of vectors than there were inputs")
    tail: dict[str, Any] = {"model": target.card.id, "usage": call.usage(found.prompt_tokens)}
    tail["backend"] = target.kind
    if asked.receipt is not None:
        tail["llm_receipt"] = msgspec.Raw(_receipt(asked, asked.receipt, found, target, call))
    body = await _document(found, tail, is_base64=asked.is_base64)
    return call.answer(body, prompt_tokens=found.prompt_tokens)


def _receipt(
    asked: EmbeddingBody, request: Mapping[str, Any], found: Embeddings, target: Target, call: Call
) -> bytes:
    told = rewritten_fields(request, model=target.card.id, sampling=None)
    done = Done(
        id=f"embd-{call.record.request_id}",
        request_id=call.record.request_id,
        created=int(time.time()),
        model=target.card.id,
        backend=target.kind,
        provenance=found.provenance,
        usage=Usage(found.prompt_tokens, 0),
        output=vector_entries(found.vectors),
        timing=Timing(prefill_ms=call.waited_ms),
        cost_usd=call.record.cost_usd,
    )
    return receipt(
        Asked(route=ROUTE, request=request, ignored=asked.ignored, rewritten=tuple(told)),
        done,
    )


async def _document(found: Embeddings, tail: Mapping[str, Any], *, is_base64: bool) -> bytes:
    parts: list[bytes] = []
    for index, vector in enumerate(found.vectors):
        if index % _VECTORS_AT_ONCE == _VECTORS_AT_ONCE - 1:
            await asyncio.sleep(0)
        written = _encode(base64.b64encode(vector).decode()) if is_base64 else _encode(floats(vector))
        parts.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (index, written))
    return b'{"object":"list","data":[' + b",".join(parts) + b"]," + _encode(tail)[1:]


def floats(vector: bytes) -> Sequence[float]:
    """The numbers of a vector, exactly. The machines this runs on keep numbers as vectors do, lowest byte first."""
    return memoryview(vector).cast("f").tolist()
