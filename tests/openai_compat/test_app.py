"""The application as a whole: life cycle, unknown paths, documentation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backends.base import Backend
from openai_compat.errors import ROWS
from tests.openai_compat.scripted_backend import Hang, ScriptedBackend
from tests.openai_compat.wire import HELLO, Connection, call, chat, make_app

GET_PATHS = ["/v1/models", "/v1/models/tiny", "/v1/backends", "/v1/info", "/health", "/ready", "/metrics"]
POST_PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models/load",
    "/v1/models/unload",
]


async def test_the_app_starts_and_closes_its_backends() -> None:
    backends: dict[str, Backend] = {"fake": ScriptedBackend(), "vllm": ScriptedBackend(kind="vllm")}
    app = make_app(backends=backends)

    async with app.router.lifespan_context(app):
        assert [backend.calls for backend in backends.values()] == [["start"]] * 2  # type: ignore[attr-defined]

    assert all(backend.calls == ["start", "aclose"] for backend in backends.values())  # type: ignore[attr-defined]


async def test_a_drain_lets_running_completions_finish() -> None:
    backend = ScriptedBackend(script=[Hang()])
    app = make_app(backend)
    connection = Connection(
        app,
        "POST",
        "/v1/chat/completions",
        body=b'{"model":"tiny","messages":[{"role":"user","content":"x"}]}',
    )
    running = asyncio.create_task(connection.run())
    await backend.reached.wait()

    app.state.drain()

    assert (await chat(app)).status == 503
    assert not await app.state.gateway.admission.idle(0)
    connection.leave()
    await running
    assert await app.state.gateway.admission.idle(0)


@pytest.mark.parametrize("path", POST_PATHS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_wrong_method_is_405_and_names_the_right_one(path: str, method: str) -> None:
    reply = await call(make_app(), method, path)

    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert "POST" in reply.headers["allow"]


@pytest.mark.parametrize("path", GET_PATHS)
async def test_head_stands_wherever_get_stands(path: str) -> None:
    app = make_app()

    head, get = await call(app, "HEAD", path), await call(app, "GET", path)

    assert head.status == get.status == 200
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nope", "/v2/models", "/v1/chat", "/redoc"])
@pytest.mark.parametrize("method", ["GET", "POST", "BREW"])
async def test_an_unknown_path_is_404_whatever_the_method(path: str, method: str) -> None:
    reply = await call(make_app(), method, path)

    assert (reply.status, reply.error["code"], reply.json["detail"]) == (404, "not_found", "Not Found")


@pytest.mark.parametrize("path", ["/v1/models/", "//v1//models", "/v1/models/tiny/", "/health/"])
async def test_extra_slashes_are_answered_directly(path: str) -> None:
    assert (await call(make_app(), "GET", path)).status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b"[" * 5000])
@pytest.mark.parametrize("path", POST_PATHS)
async def test_a_body_that_is_no_object_is_422_on_every_route(path: str, body: bytes) -> None:
    reply = await call(make_app(), "POST", path, body)

    assert (reply.status, reply.error["code"]) == (422, "validation_error")


async def test_other_content_types_are_415() -> None:
    reply = await call(make_app(), "POST", "/v1/completions", HELLO, headers={"content-type": "text/plain"})

    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


async def test_the_documentation_holds_every_route_and_its_references_resolve() -> None:
    app = make_app()
    document = (await call(app, "GET", "/openapi.json")).json

    served = {
        (route.path_format, method.lower())
        for route in app.routes
        for method in getattr(route, "methods", None) or ()
        if method not in ("HEAD", "OPTIONS") and not route.path.startswith(("/docs", "/openapi"))
    }  # fmt: skip
    documented = {(path, method) for path, item in document["paths"].items() for method in item}
    assert documented == served
    for name in references(document):
        assert name.removeprefix("#/components/schemas/") in document["components"]["schemas"]


async def test_the_documented_ranges_are_the_contracts() -> None:
    schemas = (await call(make_app(), "GET", "/openapi.json")).json["components"]["schemas"]

    chat_fields = schemas["ChatCompletionRequest"]["properties"]
    assert schemas["ChatCompletionRequest"]["required"] == ["messages", "model"]
    assert (chat_fields["temperature"]["minimum"], chat_fields["temperature"]["maximum"]) == (0, 2)
    assert chat_fields["max_tokens"]["maximum"] == 1_000_000
    assert chat_fields["messages"]["maxItems"] == 1000
    assert chat_fields["n"]["maximum"] == 16
    assert "api_key" not in chat_fields
    assert schemas["CompletionRequest"]["required"] == ["prompt"]


async def test_every_status_that_an_error_can_have_is_documented() -> None:
    paths = (await call(make_app(), "GET", "/openapi.json")).json["paths"]

    # 405 is for whoever does not read the documentation.
    every = {str(row.status) for row in ROWS.values()} - {"405"}
    assert {*paths["/v1/models/unload"]["post"]["responses"]} == every | {"200"}
    assert {*paths["/v1/chat/completions"]["post"]["responses"]} == every - {"409"} | {"200"}
    assert "400" in paths["/v1/models"]["get"]["responses"]


async def test_the_docs_page_is_served() -> None:
    assert b"swagger" in (await call(make_app(), "GET", "/docs")).body


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    if isinstance(node, list):
        return set[str]().union(*(references(value) for value in node))
    return set()
