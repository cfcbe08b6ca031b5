"""Which models there are and how far each is; loading and unloading them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from backends.errors import BackendNotAvailable, BackendTimeout
from backends.types import BackendHealth, LoadProgress, ModelStatus
from models.card import ModelCard
from openai_compat import sse
from openai_compat.errors import error_row, is_internal
from openai_compat.record import record_of
from openai_compat.schemas.models import ModelRequest
from openai_compat.serving.disconnect import client_left
from openai_compat.serving.gateway import Gateway, Target
from openai_compat.serving.http10 import whole_for_http10
from openai_compat.serving.stream import StreamWriter

_log = logging.getLogger(__name__)
_encode: Final = msgspec.json.Encoder().encode

REMOTE_ONLY: Final = "litellm"
"""The backend whose models others load: naming it for a load or unload is 400, enabled or not."""


async def list_models(gateway: Gateway, backend: str | None) -> list[dict[str, Any]]:
    """One entry per card that an enabled backend can serve. Raises: BackendNotAvailable for an unknown
    filter."""
    if backend is not None:
        gateway.backend(backend)
    health = await gateway.health.all()
    entries = []
    for card in gateway.catalogue.cards(backend):
        kind = backend or gateway.kind_of(card)
        if kind is not None:
            entries.append(_entry(card, kind, health))
    return entries


async def one_model(gateway: Gateway, name: str) -> dict[str, Any]:
    """The list's entry of the model with this id or alias. Raises: UnknownModel, BackendNotAvailable."""
    target = gateway.described(name)
    return _entry(target.card, target.kind, await gateway.health.all())


def _entry(card: ModelCard, kind: str, health: dict[str, BackendHealth]) -> dict[str, Any]:
    status = next((model for model in health[kind].models if model.id == card.id), None)
    context_length = status.context_length if status is not None else None
    entry: dict[str, Any] = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "backend": kind,
        "loaded": _is_loaded(card, kind, health[kind], status),
        "context_length": context_length or card.context_length,
        "capabilities": list(card.capabilities),
    }
    if card.aliases:
        entry["aliases"] = list(card.aliases)
    if card.price is not None:
        entry["price"] = {"unit": "USD per million tokens", **card.price.model_dump()}
    return entry


def _is_loaded(card: ModelCard, kind: str, health: BackendHealth, status: ModelStatus | None) -> bool:
    """A cloud's model counts as loaded: its backend says so of the cards, and offers no other without a key."""
    if status is not None:
        return status.state == "loaded"
    return kind == REMOTE_ONLY and health.healthy and card.backends == (REMOTE_ONLY,)


def control_target(gateway: Gateway, asked: ModelRequest) -> Target:
    """Where a load or unload goes.

    Raises: BackendNotAvailable (unknown, not enabled, or `litellm`), UnknownModel.
    """
    if asked.backend == REMOTE_ONLY:
        raise BackendNotAvailable("Backend 'litellm' does not load models: they are loaded by their provider")
    return gateway.resolve(asked.model, asked.backend)


async def load(gateway: Gateway, target: Target) -> None:
    """Load a model and wait until it answers; joins a load that already runs.

    Raises: what `Backend.load` raises; BackendTimeout, after which the load itself goes on.
    """
    limit_s = gateway.config.request_timeout_s
    steps = target.backend.load(target.card.id)
    try:
        async with asyncio.timeout(limit_s):
            async for _ in steps:
                pass
    except TimeoutError:
        raise BackendTimeout(f"The model is still loading after {limit_s:g} s; the load goes on") from None
    finally:
        await steps.aclose()
        gateway.health.forget(target.kind)


async def unload(gateway: Gateway, target: Target) -> None:
    """Unload a model once its running requests have ended. Raises: what `Backend.unload` raises;
    BackendTimeout."""
    limit_s = gateway.config.request_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            await target.backend.unload(target.card.id)
    except TimeoutError:
        raise BackendTimeout(f"The model is still unloading after {limit_s:g} s") from None
    finally:
        gateway.health.forget(target.kind)


def outcome(target: Target, message: str) -> dict[str, Any]:
    """The body of a load or unload that succeeded."""
    return {"success": True, "model": target.card.id, "backend": target.kind, "message": message}


class LoadStream(Response):
    """The progress of a load as events, the last one the plain load's body. The client's leaving ends the
    reading, not the load. An error before the first progress keeps its status."""

    def __init__(self, gateway: Gateway, target: Target) -> None:
        self.status_code = 200
        self.background = None
        self._gateway = gateway
        self._target = target

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = StreamWriter(whole_for_http10(scope, send), list)
        steps = self._target.backend.load(self._target.card.id)
        work = asyncio.create_task(self._write(steps, writer))
        leaving = asyncio.create_task(client_left(receive))
        keep_alive_s = self._gateway.config.keep_alive_s
        try:
            while not work.done() and not leaving.done():
                await asyncio.wait((work, leaving), timeout=keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
                if not work.done() and not leaving.done() and writer.started:
                    await writer.keep_alive()
            if work.done():
                work.result()
        except Exception as exc:
            if not writer.started:
                raise
            record = record_of(scope)
            record.error_code = error_row(exc).code
            if is_internal(exc):
                _log.exception("request %s failed after its headers", record.request_id)
            await writer.fail(exc)
        finally:
            leaving.cancel()
            work.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)
            self._gateway.health.forget(self._target.kind)

    async def _write(self, steps: AsyncGenerator[LoadProgress, None], writer: StreamWriter) -> None:
        try:
            async for progress in steps:
                await writer.write(sse.frame(_encode(_progress(progress))))
        finally:
            await steps.aclose()
        done = outcome(self._target, "Model loaded successfully")
        await writer.close(sse.frame(_encode(done)) + sse.DONE)


def _progress(progress: LoadProgress) -> dict[str, Any]:
    return {
        "phase": progress.phase,
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
        "fraction": round(progress.fraction, 4),
    }
