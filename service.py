"""The composition root: settings, catalogue, backends, app, BentoML services. No logic of its own.

`bentoml serve .` starts `Gateway` (HTTP, port 14011) and one runner process per enabled local backend.
`bentoml.depends` only supervises them: requests travel over our own wire, because BentoML's proxy neither tells a
runner that the client left nor keeps a stream whole (docs/decisions).
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import bentoml
import click
from bentoml._internal.server.http.traffic import TimeoutMiddleware
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from adaptive_batching import AdaptiveBatcher
from backends.base import Backend
from backends.pool import Limits
from backends.registry import FEATURES, create_backend, create_remote_backend
from backends.runner import OfferingClient, RunnerClient, RunnerReplicas, create_runner_app
from backends.termination import Termination
from image import image
from json_log import log_as_json
from models.card import BackendKind
from models.catalogue import Catalogue, CatalogueError
from openai_compat.access_log import open_access_log
from openai_compat.app import create_app
from openai_compat.config import WireConfig
from openai_compat.media.limits import MediaLimits
from openai_compat.paths import PROBES, normalise_path
from openai_compat.request_id import HEADER as REQUEST_ID
from openai_compat.request_id import request_id
from preflight import (
    allow_open_files,
    check_callers,
    check_can_serve,
    check_port_is_free,
    check_runner_is_guarded,
    instance_dir,
    make_instance_dir,
)
from settings import Args, SettingsError, environment, is_in_container, load_settings
from supervision import end_with_supervisor, keep_processes_alive

PORT: Final = 14011
LOCAL_KINDS: Final[tuple[BackendKind, ...]] = ("llamacpp", "vllm", "litellm", "fake")
RUNNER_GRACE_S: Final = 1.0
"""How long a runner goes on taking requests after SIGTERM: those that the gateway had already let in."""
LAST_WORDS_S: Final = 2.0
"""How long streams that outlast the drain have to send their error."""


def _stop(reason: str) -> NoReturn:
    sys.stderr.write(f"llm-inference cannot start: {reason}\n")
    raise SystemExit(2)


def _serve_command() -> click.Context | None:
    """The command line that is about to serve; None in a worker, a build or a test's import."""
    context = click.get_current_context(silent=True)
    return context if context is not None and context.info_name in ("serve", "start-http-server") else None


def _is_build() -> bool:
    """Whether `bentoml build` imports us: a Bento has to list every runner that it may be asked to start."""
    context = click.get_current_context(silent=True)
    return context is not None and context.info_name == "build"


try:
    args = bentoml.use_arguments(Args)
    settings = load_settings(args)
    catalogue = Catalogue.load(
        settings.catalogue, model_dirs=settings.model_dirs, hub_allow=settings.hub_allow
    )
    kinds = LOCAL_KINDS if _is_build() else settings.backends_to_serve(args)
    # Without a token only this machine may call, unless the operator names an address; a container's port is
    # published on purpose.
    is_open = settings.needs_token or is_in_container()
    host = "0.0.0.0" if is_open else "127.0.0.1"  # noqa: S104
    if (_command := _serve_command()) is not None:
        check_can_serve(settings, args, kinds, LOCAL_KINDS)
        check_callers(settings)
        _host, _port = _command.params.get("host") or host, _command.params.get("port") or PORT
        check_runner_is_guarded(settings, str(_command.params.get("bento", "")), _host)
        check_port_is_free(_host, _port)
        keep_processes_alive(environment())
        allow_open_files()
        atexit.register(
            partial(shutil.rmtree, make_instance_dir(os.getpid(), environment()), ignore_errors=True)
        )
except (SettingsError, CatalogueError) as _error:
    _stop(str(_error))

if settings.log_format == "json":
    log_as_json()
for _package in ("llm", "models", "backends"):
    logging.getLogger(_package).setLevel(settings.log_level)
# uvicorn would believe X-Forwarded-For from any peer on this machine; LLM_TRUSTED_PROXIES decides instead.
os.environ["FORWARDED_ALLOW_IPS"] = ""
_instance_dir = instance_dir(os.getpid() if _serve_command() else os.getppid(), environment())
_shared_dir = _instance_dir if _instance_dir.is_dir() else None
_runner_token = settings.runner_token.get_secret_value() if settings.runner_token else None
_runner_http = {"port": PORT, "host": "0.0.0.0" if _runner_token else "127.0.0.1"}  # noqa: S104


def _settle() -> None:
    """The end of a process's start. What was made until now stays for good; the collector need not look at it again (a
    full collection takes 50 ms and holds the interpreter, and so the engine's next step)."""
    end_with_supervisor()
    gc.collect()
    gc.freeze()


class _Service(bentoml.Service[Any]):  # type: ignore[misc]  # BentoML's classes have no types
    """Without BentoML's time-out: it keeps a timer of each request until its own time is over, however soon the request
    was, and a stream that has begun is not bounded by it. The apps hold the limit (`backends.backstop`)."""

    @override
    def to_asgi(self, is_main: bool = True) -> Starlette:
        app = super().to_asgi(is_main)
        assert isinstance(app, Starlette)
        layers: list[Any] = app.user_middleware
        app.user_middleware = [layer for layer in layers if layer.cls is not TimeoutMiddleware]
        return app


# -- runners ---------------------------------------------------------------------------------------------------


def _llamacpp() -> Backend:
    knobs = args.llamacpp
    names = ("num_slots", "n_ctx", "n_batch", "prefill_chunk_tokens", "n_threads", "n_threads_batch")
    return create_backend(
        "llamacpp",
        catalogue=catalogue,
        limits=Limits(budget_bytes=knobs.memory_budget_bytes, max_loaded_models=knobs.max_loaded_models),
        options={
            **{
                name: getattr(knobs, name)
                for name in (*names, "n_gpu_layers", "kv_unified", "memory_budget_bytes")
            },
            "max_batch_size": knobs.batch.max_batch_size,
            "make_batcher": partial(AdaptiveBatcher, **knobs.batch.model_dump()),
        },
    )


def _vllm() -> Backend:
    knobs = args.vllm
    return create_backend(
        "vllm",
        catalogue=catalogue,
        limits=Limits(budget_bytes=knobs.memory_budget_bytes, max_loaded_models=knobs.max_loaded_models),
        options=knobs.options(),
    )


def _litellm() -> Backend:
    knobs = args.litellm
    names = ("idle_timeout_s", "max_retries", "cooldown_after", "cooldown_s")
    options = {name: getattr(knobs, name) for name in names}
    options |= {"request_timeout_s": settings.request_timeout_s, "environ": environment()}
    return create_backend("litellm", catalogue=catalogue, options=options)


async def _drain_runner(app: Starlette) -> None:
    await app.state.drain(grace_s=RUNNER_GRACE_S, timeout_s=settings.drain_timeout_s)


def _runner_app(kind: BackendKind, make: Callable[[], Backend]) -> Starlette:
    return create_runner_app(make, token=_runner_token, backstop_s=args.section(kind).timeout)


llamacpp_app = _runner_app("llamacpp", _llamacpp)
vllm_app = _runner_app("vllm", _vllm)
litellm_app = _runner_app("litellm", _litellm)
fake_app = _runner_app("fake", partial(create_backend, "fake", catalogue=catalogue))


@bentoml.service(service_class=_Service, name="LlamaCppRunner", http=_runner_http, **args.llamacpp.bento())
@bentoml.asgi_app(llamacpp_app, path="/")
class LlamaCppRunner:
    """The process that owns the llama.cpp models and their engine threads."""

    @bentoml.on_startup
    async def settle(self) -> None:
        Termination(partial(_drain_runner, llamacpp_app))
        _settle()


@bentoml.service(service_class=_Service, name="VLLMRunner", http=_runner_http, **args.vllm.bento())
@bentoml.asgi_app(vllm_app, path="/")
class VLLMRunner:
    """The process that starts, watches and ends vLLM's servers, one per loaded model."""

    @bentoml.on_startup
    async def settle(self) -> None:
        Termination(partial(_drain_runner, vllm_app))
        _settle()


@bentoml.service(service_class=_Service, name="LiteLLMRunner", http=_runner_http, **args.litellm.bento())
@bentoml.asgi_app(litellm_app, path="/")
class LiteLLMRunner:
    """A process that calls clouds. Several may run: each has its own connections, and its own memory of which
    deployments fail."""

    @bentoml.on_startup
    async def settle(self) -> None:
        Termination(partial(_drain_runner, litellm_app))
        _settle()


@bentoml.service(service_class=_Service, name="FakeRunner", http=_runner_http, **args.fake.bento())
@bentoml.asgi_app(fake_app, path="/")
class FakeRunner:
    """The deterministic backend in a process of its own, for tests and load tests of everything around an engine."""

    @bentoml.on_startup
    async def settle(self) -> None:
        Termination(partial(_drain_runner, fake_app))
        _settle()


RUNNERS: Final[dict[BackendKind, Any]] = {
    "llamacpp": LlamaCppRunner,
    "vllm": VLLMRunner,
    "litellm": LiteLLMRunner,
    "fake": FakeRunner,
}


# -- gateway ---------------------------------------------------------------------------------------------------


def _runner_url(kind: BackendKind) -> str:
    """Where the runner of a kind listens; a local one's socket is known once its worker serves."""
    return str(args.section(kind).url or RUNNERS[kind].url)


def _client(kind: BackendKind) -> Backend:
    """The gateway's end of a kind: servers elsewhere are spoken to from here, everything else through a runner."""
    if kind == "vllm" and settings.vllm_base_url is not None:
        key = settings.vllm_api_key.get_secret_value() if settings.vllm_api_key else None
        return create_remote_backend(settings.vllm_base_url, key, catalogue)
    url, features = partial(_runner_url, kind), FEATURES[kind]
    elsewhere = args.section(kind).url
    if kind == "litellm":
        return OfferingClient(kind, url, _runner_token, catalogue=catalogue, features=features)
    if elsewhere is not None and elsewhere.startswith("http"):
        connect = partial(RunnerClient, kind, token=_runner_token, features=features)
        return RunnerReplicas(kind, elsewhere, connect, features=features)
    return RunnerClient(kind, url, _runner_token, features=features)


clients: dict[str, Backend] = {kind: _client(kind) for kind in kinds if kind in RUNNERS}
open_access_log()
gateway_app = create_app(
    backends=clients,
    catalogue=catalogue,
    config=WireConfig(
        default_backend=settings.default_backend or "",
        default_model=settings.default_model,
        public_url=args.gateway.url,
        api_tokens=settings.api_token_bytes,
        api_tokens_file=settings.api_tokens_file,
        principals_file=settings.principals_file,
        metrics_auth=settings.metrics_auth,
        trusted_proxies=settings.trusted_proxies,
        cors_origins=settings.cors_origins,
        rate_limit_rps=settings.rate_limit_rps,
        rate_limit_burst=settings.rate_limit_burst,
        max_concurrent_completions=settings.max_concurrent_completions,
        queue_size=settings.queue_size,
        queue_timeout_s=settings.queue_timeout_s,
        max_concurrent_embeddings=settings.max_concurrent_embeddings,
        max_body_bytes=settings.max_body_bytes,
        media=MediaLimits(
            allow=settings.media_allow,
            max_images=settings.media_max_images,
            max_bytes=settings.media_max_bytes,
            max_pixels=settings.media_max_pixels,
            max_frames=settings.media_max_frames,
            timeout_s=settings.media_timeout_s,
            max_fetches=settings.media_max_fetches,
            max_total_bytes=settings.max_body_bytes,
        ),
        request_timeout_s=settings.request_timeout_s,
        backstop_s=args.gateway.timeout,
        first_token_timeout_s=settings.first_token_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        load_wait_s=settings.load_wait_s,
        vllm_disable_thinking=settings.vllm_disable_thinking,
        budgets=settings.budgets,
        state_dir=settings.state_folder,
        redis_url=settings.redis_url.get_secret_value() if settings.redis_url else None,
        redis_prefix=settings.redis_prefix,
        num_workers=args.gateway.workers if _shared_dir and isinstance(args.gateway.workers, int) else 1,
        shared_dir=_shared_dir,
        metrics_dir=_shared_dir and _shared_dir / "metrics",
        access_log_level=settings.log_level,
    ),
    scrapes=[client.metrics for client in clients.values()],
)


async def _drain_gateway() -> None:
    gateway_app.state.drain()
    idle = gateway_app.state.idle
    if not await idle(settings.drain_timeout_s):
        # What is left ends with an error its client can read, not with a connection cut by the supervisor.
        await asyncio.gather(*(client.aclose() for client in clients.values()))
        await idle(LAST_WORDS_S)


class _Front:
    """Sends everything but BentoML's own probes straight to the app: `/schema.json` and other routes of the parent
    would stand open beside it, and an unknown path or method would get the parent's plain text."""

    def __init__(self, parent: ASGIApp) -> None:
        self._parent = parent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._parent(scope, receive, send)
            return
        path = normalise_path(scope["path"], scope.get("raw_path"))
        if path not in PROBES or scope["method"] not in ("GET", "HEAD"):
            await gateway_app(scope, receive, send)
            return
        named = (REQUEST_ID, request_id(scope["headers"]).encode())

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), named]
            await send(message)

        await self._parent({**scope, "path": path}, receive, send_named)


@bentoml.service(
    service_class=_Service,
    name="Gateway",
    http={"port": PORT, "host": host},
    # The parent's /readyz would ask the runners and hang while one loads; `__is_ready__` answers in time.
    runner_probe={"enabled": False, "timeout": 1, "period": 10},
    image=image,
    **args.gateway.bento(),
)
@bentoml.asgi_app(gateway_app, path="/")
class Gateway:
    """The process that speaks HTTP with clients."""

    if "llamacpp" in kinds and args.llamacpp.url is None:
        llamacpp = bentoml.depends(LlamaCppRunner)
    if "vllm" in kinds and args.vllm.url is None and settings.vllm_base_url is None:
        vllm = bentoml.depends(VLLMRunner)
    if "litellm" in kinds and args.litellm.url is None:
        litellm = bentoml.depends(LiteLLMRunner)
    if "fake" in kinds and args.fake.url is None:
        fake = bentoml.depends(FakeRunner)

    @bentoml.on_startup
    async def settle(self) -> None:
        Termination(_drain_gateway)
        _settle()

    async def __is_ready__(self) -> bool:
        return await gateway_app.state.gateway.why_not_ready() is None


Gateway.add_asgi_middleware(_Front)  # type: ignore[attr-defined]  # bentoml.service makes it a Service
