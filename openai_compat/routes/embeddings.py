"""`POST /v1/embeddings`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.routes.body import read_body
from openai_compat.schemas.embeddings import read_embedding
from openai_compat.serving.embeddings import serve_embeddings


async def embeddings(request: Request) -> Response:
    """Body (422), then model and backend (404, 400), then admission (503)."""
    asked = await read_body(request, read_embedding)
    return await serve_embeddings(request.app.state.gateway, asked, request)
