"""`POST /v1/rerank` and `POST /v1/score`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.routes.body import read_body
from openai_compat.schemas.rerank import read_rerank, read_score
from openai_compat.serving.rerank import serve_rerank, serve_score


async def rerank(request: Request) -> Response:
    """Body (422), then model and backend (404, 400), then admission (503)."""
    asked = await read_body(request, read_rerank)
    return await serve_rerank(request.app.state.gateway, asked, request)


async def score(request: Request) -> Response:
    """As `rerank`."""
    asked = await read_body(request, read_score)
    return await serve_score(request.app.state.gateway, asked, request)
