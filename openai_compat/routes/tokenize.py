"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.routes.body import is_strict, read_object
from openai_compat.schemas.tokenize import read_detokenize, read_tokenize
from openai_compat.serving.tokenize import serve_detokenize, serve_tokenize


async def tokenize(request: Request) -> Response:
    """Body (422), then model and backend (404, 400), then admission (503)."""
    body = await read_object(request)
    asked = read_tokenize(body, strict=is_strict(request))
    return await serve_tokenize(request.app.state.gateway, asked, request)


async def detokenize(request: Request) -> Response:
    """As `tokenize`."""
    body = await read_object(request)
    asked = read_detokenize(body, strict=is_strict(request))
    return await serve_detokenize(request.app.state.gateway, asked, request)
