"""`POST /v1/completions`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.routes.body import read_body
from openai_compat.schemas.completions import read_completion
from openai_compat.serving.completions import serve_completion


async def completions(request: Request) -> Response:
    """Body (422), then model and backend (404, 400); admission and the rest happen in the response."""
    asked = await read_body(request, read_completion)
    return serve_completion(request.app.state.gateway, asked, request.scope)
