"""`POST /v1/embeddings`: checked, but no backend makes embeddings yet."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from backends.errors import NotSupported
from openai_compat.routes.body import is_strict, read_object
from openai_compat.schemas.models import EMBEDDINGS, read_model_request


async def embeddings(request: Request) -> Response:
    """Raises: ValidationFailed, UnknownModel, BackendNotAvailable; NotSupported for any model that exists."""
    body = await read_object(request)
    asked = read_model_request(body, EMBEDDINGS, strict=is_strict(request))
    target = request.app.state.gateway.resolve(asked.model, asked.backend)
    raise NotSupported(f"Backend {target.kind!r} does not support embeddings")
