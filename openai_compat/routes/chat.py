"""`POST /v1/chat/completions`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.routes.body import read_body
from openai_compat.schemas.chat import read_chat
from openai_compat.serving.chat import serve_chat


async def chat_completions(request: Request) -> Response:
    """Body (422), then model and backend (404, 400); admission and the rest happen in the response."""
    asked = await read_body(request, read_chat)
    return serve_chat(request.app.state.gateway, asked, request.scope)
