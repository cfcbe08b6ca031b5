"""Chats with pictures, from the request to what the backend is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import pytest

from backends.errors import BackendUnavailable
from backends.types import ChatPrompt, Feature, GenerationRequest, TextPrompt
from openai_compat.media.limits import MediaLimits
from openai_compat.serving.cost import CHARS_PER_TOKEN, TOKENS_PER_PICTURE, _tokens_about
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, silence, upstream
from tests.openai_compat.pictures import JPEG, PNG, data_url, png, shown
from tests.openai_compat.scripted_backend import Hang, ScriptedBackend, hello
from tests.openai_compat.test_tokenize import TokenBackend
from tests.openai_compat.wire import Connection, Reply, call, card, make_app

SIGHT: frozenset[Feature] = frozenset({"vision"})
SEEING = card(capabilities=("chat", "vision"))
URL = data_url(PNG)


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(200, JPEG, "image/jpeg")

    async with upstream(answer) as one:
        yield one


_apps: list[Any] = []


@pytest.fixture(autouse=True)
async def _fetchers_are_closed() -> AsyncIterator[None]:
    yield
    for app in _apps:
        await app.state.gateway.media.aclose()
    _apps.clear()


def app_of(backend: ScriptedBackend, *cards: Any, server: Upstream | None = None, **config: Any) -> Any:
    if server is not None:
        config["media"] = MediaLimits(allow=(f"127.0.0.1:{server.port}",))
    _apps.append(make_app(backend, cards=cards or [SEEING], **config))
    return _apps[-1]


async def ask(app: Any, messages: list[dict[str, Any]], **fields: Any) -> Reply:
    return await call(app, "POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, **fields})


def pictures_of(request: GenerationRequest) -> list[str]:
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    return [
        part["image_url"]["url"]
        for message in prompt.messages
        for part in message["content"]
        if part["type"] == "image_url"
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_picture_in_the_request_reaches_the_backend(stream: bool) -> None:
    backend = ScriptedBackend(features=SIGHT)

    reply = await ask(app_of(backend), shown(URL, detail="high"), stream=stream)

    assert reply.status == 200
    assert pictures_of(backend.requests[0]) == [URL]
    assert "x-llm-ignored" not in reply.headers


async def test_a_link_reaches_the_backend_as_the_picture_behind_it(server: Upstream) -> None:
    backend = ScriptedBackend(features=SIGHT)

    reply = await ask(app_of(backend, server=server), shown(f"{server.url}/a.jpg"))

    assert reply.status == 200
    assert pictures_of(backend.requests[0]) == [data_url(JPEG, "image/jpeg")]
    assert len(server.calls) == 1


async def test_without_hosts_that_are_allowed_a_link_is_400_naming_the_setting(server: Upstream) -> None:
    backend = ScriptedBackend(features=SIGHT)

    reply = await ask(app_of(backend), shown(f"{server.url}/a.jpg"))

    assert (reply.status, reply.error["code"]) == (400, "invalid_value")
    assert reply.error["param"] == "messages[0].content[1].image_url"
    assert "LLM_MEDIA_ALLOW" in reply.error["message"]
    assert server.connections == 0
    assert backend.requests == []


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,AAAA", data_url(PNG[:-4]), data_url(PNG, "image/jpeg"), "file:///etc/passwd", ""],
)
async def test_a_broken_picture_is_400_naming_its_place(url: str) -> None:
    reply = await ask(app_of(ScriptedBackend(features=SIGHT)), shown(URL, url), stream=True)

    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == "messages[0].content[2].image_url"


async def test_a_refused_picture_costs_no_slot() -> None:
    backend = ScriptedBackend(features=SIGHT, script=[Hang()])
    app = app_of(backend, max_concurrent_completions=1)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    running = Connection(app, "POST", "/v1/chat/completions", body=body)
    task = asyncio.create_task(running.run())
    await backend.reached.wait()

    refused = await ask(app, shown("data:image/png;base64,AAAA"))
    waits = await ask(app, shown(URL))
    running.leave()
    await task

    assert refused.status == 400
    assert waits.status == 503


async def test_a_model_without_sight_is_400_naming_its_capabilities_and_nothing_is_fetched(
    server: Upstream,
) -> None:
    app = app_of(ScriptedBackend(features=SIGHT), card(capabilities=("chat", "tools")), server=server)

    reply = await ask(app, shown(f"{server.url}/a.jpg"))

    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")
    assert reply.error["param"] == "messages[0].content[1]"
    assert "its capabilities: chat, tools" in reply.error["message"]
    assert server.connections == 0


async def test_another_error_of_the_request_comes_before_any_fetch(server: Upstream) -> None:
    app = app_of(ScriptedBackend(features=SIGHT), server=server)

    reply = await ask(app, shown(f"{server.url}/a.jpg"), suffix_of_nobody=1, modalities=["audio"])

    assert (reply.status, reply.error["param"]) == (400, "modalities")
    assert server.connections == 0


@pytest.mark.parametrize("detail", ["huge", 1, ["low"]])
async def test_a_detail_that_nobody_knows_is_422(detail: Any) -> None:
    reply = await ask(app_of(ScriptedBackend(features=SIGHT)), shown(URL, detail=detail))

    assert reply.status == 422
    assert reply.error["param"] == "messages.0.content.1.image_url.detail"


async def test_a_detail_that_the_backend_has_not_is_named_as_ignored() -> None:
    vllm = ScriptedBackend(kind="vllm", features=SIGHT)
    seeing = card(sources={"vllm": {"name": "tiny"}}, capabilities=("chat", "vision"))
    app = make_app(backends={"vllm": vllm}, cards=[seeing], default_backend="vllm")

    reply = await ask(app, shown(URL, detail="low"))

    assert reply.headers["x-llm-ignored"] == "image_url.detail"


async def test_a_client_that_leaves_ends_the_fetching(server: Upstream) -> None:
    server.answer = silence
    backend = ScriptedBackend(features=SIGHT)
    body = json.dumps({"model": "tiny", "messages": shown(f"{server.url}/a.jpg")}).encode()
    connection = Connection(app_of(backend, server=server), "POST", "/v1/chat/completions", body=body)
    task = asyncio.create_task(connection.run())
    fetched = await server.wait_for_call()
    connection.leave()
    await fetched.wait_until_ended()
    await task

    assert fetched.client_left
    assert backend.requests == []
    assert connection.reply.messages == []


async def test_the_time_that_a_fetch_takes_is_not_counted_as_ours(server: Upstream) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        await asyncio.sleep(0.2)
        await wire.whole(200, JPEG, "image/jpeg")

    server.answer = answer

    reply = await ask(app_of(ScriptedBackend(features=SIGHT), server=server), shown(f"{server.url}/a.jpg"))

    assert float(reply.headers["x-llm-overhead-ms"]) < 150


async def test_a_fallback_gets_the_picture_that_was_fetched_once(server: Upstream) -> None:
    def script(request: GenerationRequest) -> Any:
        return [BackendUnavailable("away")] if request.model == "tiny" else hello(request)

    backend = ScriptedBackend(features=SIGHT, script=script)
    cards = [
        card(capabilities=("chat", "vision"), fallbacks=("blind", "other")),
        card("blind"),
        card("other", capabilities=("chat", "vision")),
    ]

    reply = await ask(app_of(backend, *cards, server=server), shown(f"{server.url}/a.jpg"))

    assert reply.json["model"] == "other"
    assert [request.model for request in backend.requests] == ["tiny", "other"]
    assert pictures_of(backend.requests[1]) == [data_url(JPEG, "image/jpeg")]
    assert len(server.calls) == 1


async def test_tokens_of_a_conversation_with_pictures_are_told(server: Upstream) -> None:
    backend = TokenBackend(features=SIGHT)
    app = app_of(backend, server=server)
    body = {"model": "tiny", "messages": shown(f"{server.url}/a.jpg")}

    reply = await call(app, "POST", "/tokenize", body)
    broken = await call(app, "POST", "/tokenize", {**body, "messages": shown("data:image/png;base64,AAAA")})

    assert reply.status == 200
    prompt = backend.asked[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[0]["content"][1]["image_url"]["url"] == data_url(JPEG, "image/jpeg")
    assert (broken.status, broken.error["param"]) == (400, "messages[0].content[1].image_url")


async def test_a_receipt_says_what_was_behind_a_link_and_holds_no_fetched_picture(server: Upstream) -> None:
    link = f"{server.url}/a,b.jpg"
    app = app_of(ScriptedBackend(features=SIGHT), server=server)

    told = (await ask(app, shown(URL, link), receipt=True)).json["llm_receipt"]

    expected = {"from": "link", "to": f"sha256:{sha256(JPEG).hexdigest()}"}
    assert told["rewritten"][-1] == {"field": "messages[0].content[2].image_url", **expected}
    assert told["request"]["messages"] == shown(URL, link)
    assert data_url(JPEG, "image/jpeg") not in json.dumps(told)


async def test_what_can_see_is_listed_so() -> None:
    reply = await call(app_of(ScriptedBackend(features=SIGHT)), "GET", "/v1/models/tiny")

    assert reply.json["capabilities"] == ["chat", "vision"]


def test_a_picture_costs_the_same_whatever_its_bytes_are() -> None:
    """Where nobody counted them: the base64 of a photograph would be a million tokens of text."""
    small, large = (ChatPrompt(messages=shown(data_url(png(side, side)), text="")) for side in (1, 400))

    assert _tokens_about(small) == _tokens_about(large)
    assert _tokens_about(small) - TOKENS_PER_PICTURE < 20
    assert _tokens_about(TextPrompt(text="x" * CHARS_PER_TOKEN)) == 1
