"""`/health`, `/ready`, `/metrics`, `/v1/info`: what probes, scrapers and the catalogue of services read.

None of them waits for a model or makes a paid call.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from openai_compat.errors import error_document, error_headers
from openai_compat.routes.models import json_response
from openai_compat.serving.gateway import Gateway
from openai_compat.serving.health import overall
from openai_compat.serving.info import describe_service
from openai_compat.serving.models import list_models

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(request: Request) -> Response:
    """Always 200: a probe on it restarts nobody for a model's sake."""
    found = await _gateway(request).health.all()
    backends = [
        {"name": kind, "healthy": health.healthy, "message": health.message} for kind, health in found.items()
    ]
    return json_response({"status": overall(found), "backends": backends})


async def ready(request: Request) -> Response:
    """200 while new completions would be taken; 503 with the reason when draining or the default backend is
    ill."""
    reason = await _gateway(request).why_not_ready()
    if reason is None:
        return json_response({"ready": True})
    response = json_response({"ready": False, **error_document(reason)}, status=503)
    response.headers.update(error_headers(reason))
    return response


async def metrics(request: Request) -> Response:
    """Prometheus text of all gateway workers and of the runners that answer."""
    gateway = _gateway(request)
    text = await asyncio.to_thread(gateway.metrics.render, await gateway.runner_metrics())
    return Response(text, headers={"content-type": METRICS_TYPE})


async def info(request: Request) -> Response:
    """The service's own description."""
    gateway = _gateway(request)
    models = await list_models(gateway, None)
    url = gateway.config.public_url
    return json_response(describe_service(models, list(gateway.backends), url=url))


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway
