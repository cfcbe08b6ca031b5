"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.routes.body import read_body
from openai_compat.schemas.tokenize import read_detokenize, read_tokenize
from openai_compat.serving.tokenize import serve_detokenize, serve_tokenize


async def tokenize(request: Request) -> Response:
    """Body (422), then model and backend (404, 400), then admission (503)."""
    asked = await read_body(request, read_tokenize)
    return await serve_tokenize(request.app.state.gateway, asked, request)


async def detokenize(request: Request) -> Response:
    """As `tokenize`."""
    asked = await read_body(request, read_detokenize)
    return await serve_detokenize(request.app.state.gateway, asked, request)
