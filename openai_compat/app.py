"""The application: its parts joined, its routes, its life.

start   backends start (nothing waits for a model)
drain   /ready turns 503, new completions are refused, running ones finish
stop    backends are closed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.routing import Route

from backends.base import Backend
from models.catalogue import Catalogue
from openai_compat.admission import Admission
from openai_compat.budgets import Budgets, SpendingStore
from openai_compat.config import WireConfig
from openai_compat.media.intake import Intake
from openai_compat.metrics import Metrics
from openai_compat.middleware import PASS_ON, layers
from openai_compat.openapi import openapi_document
from openai_compat.rate_limit import RateLimiter
from openai_compat.replicas import Replicas
from openai_compat.routes import chat, completions, embeddings, health, models, rerank, tokenize
from openai_compat.serving.gateway import Gateway
from openai_compat.serving.health import HealthCache
from openai_compat.serving.info import SERVICE_TITLE, SERVICE_VERSION
from openai_compat.spending_file import SpendingFile

ROUTES: Final = (
    Route("/v1/chat/completions", chat.chat_completions, methods=["POST"]),
    Route("/v1/completions", completions.completions, methods=["POST"]),
    Route("/v1/embeddings", embeddings.embeddings, methods=["POST"]),
    Route("/v1/rerank", rerank.rerank, methods=["POST"]),
    Route("/v1/score", rerank.score, methods=["POST"]),
    Route("/tokenize", tokenize.tokenize, methods=["POST"]),
    Route("/detokenize", tokenize.detokenize, methods=["POST"]),
    Route("/v1/models", models.list_models, methods=["GET"]),
    Route("/v1/models/load", models.load_model, methods=["POST"]),
    Route("/v1/models/unload", models.unload_model, methods=["POST"]),
    Route("/v1/models/{id:path}", models.one_model, methods=["GET"]),
    Route("/v1/backends", models.list_backends, methods=["GET"]),
    Route("/v1/info", health.info, methods=["GET"]),
    Route("/health", health.health, methods=["GET"]),
    Route("/ready", health.ready, methods=["GET"]),
    Route("/metrics", health.metrics, methods=["GET"]),
)


def create_app(
    *,
    backends: Mapping[str, Backend],
    catalogue: Catalogue,
    config: WireConfig,
    scrapes: Sequence[Callable[[], Awaitable[bytes]]] = (),
) -> FastAPI:
    """The ASGI application. It owns the backends from its start on: it starts and closes them.

    `scrapes` read the runners' own Prometheus texts. `app.state.drain()` begins the drain and returns at
    once; `app.state.idle(timeout_s)` tells whether everything that held a slot has ended by then.

    Raises: ValueError for a configuration that cannot be used.
    """
    metrics = Metrics(
        directory=config.metrics_dir, known_models=lambda: [card.id for card in catalogue.cards()]
    )
    shared = Replicas(config, on_failure=metrics.redis_failed) if config.redis_url is not None else None
    if shared is not None:
        admission, embedding_admission = shared.admissions(on_change=metrics.occupancy)
    else:
        admission = Admission.from_config(config, on_change=metrics.occupancy)
        embedding_admission = Admission.for_embeddings(config)
    spending: SpendingStore | None = None
    if shared is not None:
        spending = shared.spending
    elif config.state_dir is not None:
        spending = SpendingFile(config.state_dir)
    budgets = Budgets(spending, config.budgets, on_cost=metrics.principal_cost)
    limiter = RateLimiter.from_config(config, shared.buckets if shared is not None else None)
    gateway = Gateway(
        backends,
        catalogue,
        config,
        admission,
        embedding_admission,
        metrics,
        HealthCache(backends),
        budgets,
        Intake(config.media),
        tuple(scrapes),
    )

    def drain() -> None:
        admission.drain()
        embedding_admission.drain()

    async def idle(timeout_s: float) -> bool:
        return all(await asyncio.gather(admission.idle(timeout_s), embedding_admission.idle(timeout_s)))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            for backend in backends.values():
                await backend.start()
            yield
        finally:
            await gateway.health.aclose()
            await gateway.media.aclose()
            await budgets.aclose()
            if shared is not None:
                await shared.aclose()
            await asyncio.gather(*(backend.aclose() for backend in backends.values()), return_exceptions=True)
            metrics.close()

    app = FastAPI(
        title=SERVICE_TITLE,
        version=SERVICE_VERSION,
        lifespan=lifespan,
        middleware=layers(config, metrics=metrics, limiter=limiter),
        exception_handlers=PASS_ON,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.router.routes.extend(ROUTES)
    document: dict[str, Any] = openapi_document()
    app.openapi = lambda: document  # type: ignore[method-assign]
    app.state.gateway = gateway
    app.state.drain = drain
    app.state.idle = idle
    return app
