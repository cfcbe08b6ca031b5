"""Headers for browsers."""

from __future__ import annotations

import pytest
from starlette.types import Message, Receive, Scope, Send

from openai_compat.cors import Cors


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that answers everything."""
    await send({"type": "http.response.start", "status": 418, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b""})


async def ask(origins: list[str], method: str = "GET", **headers: str) -> dict[str, str]:
    """The headers of the answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nobody reads")

    async def send(message: Message) -> None:
        sent.append(message)

    given = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    await Cors(answer, origins)({"type": "http", "method": method, "headers": given}, receive, send)
    return {name.decode(): text.decode() for name, text in sent[0]["headers"]}


async def test_an_allowed_origin_is_named_and_may_read_our_headers() -> None:
    found = await ask(["https://a.example"], origin="https://a.example")

    assert found["access-control-allow-origin"] == "https://a.example"
    assert "x-request-id" in found["access-control-expose-headers"]
    assert "retry-after-ms" in found["access-control-expose-headers"]
    assert found["vary"] == "origin"
    assert found["a"] == "b"


@pytest.mark.parametrize(
    "origin", ["https://b.example", "null", "https://a.example.evil", "http://a.example"]
)
async def test_any_other_origin_gets_nothing(origin: str) -> None:
    found = await ask(["https://a.example"], origin=origin)

    assert not any(name.startswith("access-control") for name in found)
    assert found["vary"] == "origin"


async def test_a_star_allows_everybody_without_credentials() -> None:
    found = await ask(["*"], origin="https://anything.example")

    assert found["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in found


async def test_a_preflight_allows_post_with_the_headers_it_asks_for() -> None:
    found = await ask(
        ["https://a.example"],
        "OPTIONS",
        origin="https://a.example",
        access_control_request_method="POST",
        access_control_request_headers="authorization, x-stainless-lang",
    )

    assert "POST" in found["access-control-allow-methods"]
    assert found["access-control-allow-headers"] == "authorization, x-stainless-lang"


async def test_odd_header_names_are_not_echoed() -> None:
    found = await ask(
        ["*"],
        "OPTIONS",
        origin="https://a.example",
        access_control_request_method="POST",
        access_control_request_headers="a;b\x01",
    )

    assert found["access-control-allow-headers"] == "authorization, content-type, x-request-id"


async def test_without_an_origin_only_caches_are_told() -> None:
    assert await ask(["https://a.example"]) == {"a": "b", "vary": "origin"}
