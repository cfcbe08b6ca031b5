"""`/v1/models`, `/v1/models/{id}`, `/v1/models/load`, `/v1/models/unload`, `/v1/backends`."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_compat.errors import MethodNotAllowed
from openai_compat.routes.body import read_body
from openai_compat.schemas.models import LOAD, UNLOAD, read_model_request
from openai_compat.serving import models as serving
from openai_compat.serving.gateway import Gateway

_NO_IDS = frozenset({"load", "unload"})


def json_response(content: Any, *, status: int = 200) -> Response:
    """`content` as JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def list_models(request: Request) -> Response:
    """Raises: BackendNotAvailable for an unknown `?backend=`."""
    backend = request.query_params.get("backend") or None
    entries = await serving.list_models(_gateway(request), backend)
    return json_response({"object": "list", "data": entries})


async def one_model(request: Request) -> Response:
    """Raises: UnknownModel; MethodNotAllowed for the two names that are no ids."""
    name = request.path_params["id"]
    if name in _NO_IDS:
        raise MethodNotAllowed(("POST", "OPTIONS"))
    return json_response(await serving.one_model(_gateway(request), name))


async def load_model(request: Request) -> Response:
    """Raises: what `Backend.load` raises."""
    asked = await read_body(request, partial(read_model_request, table=LOAD))
    gateway = _gateway(request)
    target = serving.control_target(gateway, asked)
    if asked.stream:
        return serving.LoadStream(gateway, target)
    await serving.load(gateway, target)
    return json_response(serving.outcome(target, "Model loaded successfully"))


async def unload_model(request: Request) -> Response:
    """Raises: what `Backend.unload` raises."""
    asked = await read_body(request, partial(read_model_request, table=UNLOAD))
    gateway = _gateway(request)
    target = serving.control_target(gateway, asked)
    await serving.unload(gateway, target)
    return json_response(serving.outcome(target, "Model unloaded successfully"))


async def list_backends(request: Request) -> Response:
    return json_response({"backends": list(_gateway(request).backends)})


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway
