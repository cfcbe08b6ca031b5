"""What a body says beyond its schema is told on every route that takes one, whatever the answer."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Route

from openai_compat.ignored import ignored_headers
from tests.openai_compat.wire import call, make_app

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": MESSAGES},
    "/v1/completions": {"model": "tiny", "prompt": "Hi"},
    "/v1/embeddings": {"model": "tiny", "input": "Hi"},
    "/v1/rerank": {"model": "tiny", "query": "Hi", "documents": ["Ho"]},
    "/v1/score": {"model": "tiny", "text_1": "Hi", "text_2": "Ho"},
    "/tokenize": {"model": "tiny", "prompt": "Hi"},
    "/detokenize": {"model": "tiny", "tokens": [1]},
    "/v1/models/load": {"model": "tiny", "backend": "fake"},
    "/v1/models/unload": {"model": "tiny", "backend": "fake"},
}
"""The least that each route takes."""


def routes_with_a_body() -> list[str]:
    found = [route for route in make_app().routes if isinstance(route, Route)]
    return [route.path for route in found if (route.methods or set()) & {"POST", "PUT", "PATCH"}]


def test_there_is_a_body_here_for_every_route_that_takes_one() -> None:
    assert sorted(routes_with_a_body()) == sorted(BODIES)


@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_field_is_named_in_the_header(path: str) -> None:
    reply = await call(make_app(), "POST", path, {**BODIES[path], "wings": 2})

    assert reply.headers.get("x-llm-ignored") == "wings"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("query", ["strict=1", "strict=true", "strict"])
async def test_strict_makes_it_an_error(path: str, query: str) -> None:
    reply = await call(make_app(), "POST", path, {**BODIES[path], "wings": 2}, query=query)

    assert (reply.status, reply.error["param"]) == (422, "wings")


@pytest.mark.parametrize("path", BODIES)
async def test_where_nothing_is_ignored_there_is_no_header(path: str) -> None:
    reply = await call(make_app(), "POST", path, BODIES[path], query="strict=1")

    assert "x-llm-ignored" not in reply.headers
    assert reply.status != 422


async def test_a_request_that_fails_after_its_body_was_read_still_names_the_field() -> None:
    reply = await call(make_app(), "POST", "/v1/embeddings", {"model": "none", "input": "Hi", "wings": 2})

    assert (reply.status, reply.headers["x-llm-ignored"]) == (404, "wings")


async def test_the_stream_of_a_load_names_the_field() -> None:
    body = {**BODIES["/v1/models/load"], "stream": True, "wings": 2}
    reply = await call(make_app(), "POST", "/v1/models/load", body)

    assert (reply.status, reply.headers["x-llm-ignored"]) == (200, "wings")


def test_a_long_list_is_cut_below_4_kb() -> None:
    ((_, value),) = ignored_headers(tuple(f"field_{number:05}" for number in range(1000)))

    assert value.endswith(b", ...")
    assert len(value) <= 4096
