"""`POST /v1/completions`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.routes.body import is_strict, read_object
from openai_compat.schemas.completions import read_completion
from openai_compat.serving.completions import serve_completion


async def completions(request: Request) -> Response:
    """Body (422), then model and backend (404, 400); admission and the rest happen in the response."""
    body = await read_object(request)
    asked = read_completion(body, strict=is_strict(request))
    return serve_completion(request.app.state.gateway, asked, request.scope)
