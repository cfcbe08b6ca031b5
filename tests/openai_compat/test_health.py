"""Health, readiness, metrics and the service's description."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backends.base import Backend
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import call, chat, make_app


@pytest.mark.parametrize(
    ("healthy", "status"),
    [((True, True), "healthy"), ((True, False), "degraded"), ((False, False), "unhealthy")],
)
async def test_health_follows_from_the_backends_and_is_always_200(
    healthy: tuple[bool, bool], status: str
) -> None:
    backends: dict[str, Backend] = {
        "fake": ScriptedBackend(healthy=healthy[0]),
        "vllm": ScriptedBackend(kind="vllm", healthy=healthy[1]),
    }

    reply = await call(make_app(backends=backends), "GET", "/health")

    assert (reply.status, reply.json["status"]) == (200, status)
    assert reply.json["backends"][1] == {
        "name": "vllm",
        "healthy": healthy[1],
        "message": None if healthy[1] else "Connection refused",
    }


async def test_a_backend_whose_probe_breaks_is_unhealthy() -> None:
    class Broken(ScriptedBackend):
        async def health(self) -> object:  # type: ignore[override]
            raise RuntimeError("secret")

    reply = await call(make_app(Broken()), "GET", "/health")

    assert reply.json["status"] == "unhealthy"
    assert b"secret" not in reply.body


def test_a_backend_that_stops_answering_becomes_unhealthy() -> None:
    async def scenario() -> list[str]:
        backend = ScriptedBackend()
        app = make_app(backend)
        seen = [(await call(app, "GET", "/health")).json["status"]]
        backend.health_s = 1e6
        for _ in range(3):
            await asyncio.sleep(2)
            seen.append((await call(app, "GET", "/health")).json["status"])
        return seen

    assert run_virtual(scenario()) == ["healthy", "healthy", "unhealthy", "unhealthy"]


async def test_ready_follows_the_default_backend() -> None:
    backends: dict[str, Backend] = {
        "fake": ScriptedBackend(),
        "vllm": ScriptedBackend(kind="vllm", healthy=False),
    }

    by_default = {
        kind: await call(make_app(backends=backends, default_backend=kind), "GET", "/ready")
        for kind in backends
    }

    assert (by_default["fake"].status, by_default["fake"].json) == (200, {"ready": True})
    assert by_default["vllm"].status == 503
    assert by_default["vllm"].json["ready"] is False
    assert by_default["vllm"].error["code"] == "backend_unavailable"
    assert int(by_default["vllm"].headers["retry-after"]) >= 1


async def test_an_unloaded_model_does_not_make_the_service_unready() -> None:
    app = make_app()

    await call(app, "POST", "/v1/models/unload", {"model": "tiny", "backend": "fake"})

    assert (await call(app, "GET", "/ready")).status == 200


async def test_draining_refuses_new_completions_and_is_not_ready() -> None:
    app = make_app()

    app.state.drain()

    ready, completion = await call(app, "GET", "/ready"), await chat(app, stream=True)
    assert (ready.status, completion.status) == (503, 503)
    assert int(completion.headers["retry-after"]) >= 1
    assert (await call(app, "GET", "/health")).status == 200


async def test_metrics_are_prometheus_text_and_count_requests() -> None:
    app = make_app()
    await chat(app)

    reply = await call(app, "GET", "/metrics")

    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"llm:http_requests_total{" in reply.body
    assert b'route="/v1/chat/completions"' in reply.body


async def test_metrics_hold_the_runners_series_and_a_silent_runner_costs_only_its_own() -> None:
    async def runner() -> bytes:
        return b"# HELP llm:steps_total Steps.\n# TYPE llm:steps_total counter\nllm:steps_total 5\n"

    async def dead() -> bytes:
        raise OSError("gone")

    app = make_app(scrapes=(runner, dead))

    assert b"llm:steps_total 5" in (await call(app, "GET", "/metrics")).body


async def test_info_names_the_service_its_models_and_its_routes() -> None:
    app = make_app()

    info = (await call(app, "GET", "/v1/info")).json

    assert info["resource"]["name"] == "llm-inference"
    assert info["models"] == (await call(app, "GET", "/v1/models")).json["data"]
    paths = {(function["method"], function["path"]) for function in info["functions"]}
    assert ("POST", "/v1/chat/completions") in paths
    served = {
        (method, route.path_format)
        for route in app.routes
        for method in getattr(route, "methods", None) or ()
    }
    assert paths <= served


async def test_info_tells_the_address_where_the_operator_named_one() -> None:
    async def resource(**config: str) -> Any:
        return (await call(make_app(**config), "GET", "/v1/info")).json["resource"]

    assert (await resource(public_url="https://llm.example"))["url"] == "https://llm.example"
    assert "url" not in await resource()
