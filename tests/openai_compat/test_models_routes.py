"""Listing, describing, loading and unloading models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backends.errors import Conflict, InsufficientMemory, NotSupported
from backends.types import LoadProgress, ModelStatus
from models.errors import UnknownModel, UnusableModel
from tests.openai_compat.scripted_backend import Pause, ScriptedBackend
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import Connection, Reply, call, card, make_app

ENTRY = {
    "id": "tiny",
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "llm-inference",
    "backend": "fake",
    "loaded": True,
    "context_length": 2048,
    "capabilities": ["chat", "completion"],
}


async def load(app: Any, **fields: Any) -> Reply:
    return await call(app, "POST", "/v1/models/load", {"model": "tiny", "backend": "fake", **fields})


async def unload(app: Any, **fields: Any) -> Reply:
    return await call(app, "POST", "/v1/models/unload", {"model": "tiny", "backend": "fake", **fields})


async def test_a_list_has_one_entry_per_card() -> None:
    reply = await call(make_app(), "GET", "/v1/models")

    assert reply.json == {"object": "list", "data": [ENTRY]}


async def test_an_alias_is_shown_with_its_card_and_not_beside_it() -> None:
    app = make_app(cards=[card(aliases=["gpt-4"])])

    assert (await call(app, "GET", "/v1/models")).json["data"] == [{**ENTRY, "aliases": ["gpt-4"]}]


async def test_a_filter_gives_the_entries_of_that_backend() -> None:
    cards = [
        card("a"),
        card("b", sources={"vllm": {"name": "b"}}),
        card("c", sources={"fake": {"name": "c"}, "vllm": {"name": "c"}}),
    ]
    backends = {
        "fake": ScriptedBackend(),
        "vllm": ScriptedBackend(kind="vllm"),
        "litellm": ScriptedBackend(kind="litellm"),
    }
    app = make_app(cards=cards, backends=backends)

    found = {}
    for kind in backends:
        reply = await call(app, "GET", "/v1/models", query=f"backend={kind}")
        found[kind] = [(entry["id"], entry["backend"]) for entry in reply.json["data"]]

    assert found == {
        "fake": [("a", "fake"), ("c", "fake")],
        "vllm": [("b", "vllm"), ("c", "vllm")],
        "litellm": [],
    }


@pytest.mark.parametrize("backend", ["nope", "litellm"])
async def test_a_filter_for_a_backend_that_is_not_enabled_is_400(backend: str) -> None:
    reply = await call(make_app(), "GET", "/v1/models", query=f"backend={backend}")

    assert (reply.status, reply.json["detail"]) == (400, f"Backend '{backend}' is not available")


async def test_a_card_that_no_enabled_backend_serves_is_not_listed() -> None:
    app = make_app(cards=[card(), card("far", sources={"litellm": {"name": "x/y"}})])

    assert [entry["id"] for entry in (await call(app, "GET", "/v1/models")).json["data"]] == ["tiny"]


@pytest.mark.parametrize("name", ["tiny", "org/tiny", "模型", "a:b", "org//x", "gpt-4"])
async def test_a_model_is_described_by_any_of_its_names(name: str) -> None:
    app = make_app(cards=[card(name)] if name not in ("gpt-4", "org//x") else [card("x", aliases=["gpt-4"])])

    reply = await call(app, "GET", f"/v1/models/{name}")

    if name == "org//x":
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    else:
        assert reply.json == (await call(app, "GET", "/v1/models")).json["data"][0]


@pytest.mark.parametrize("name", ["nope", "org/nope", "пусто", "a:b", "../../etc/passwd", "..\\x", "a\0b"])
async def test_an_unknown_model_is_404(name: str) -> None:
    reply = await call(make_app(), "GET", f"/v1/models/{name}")

    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("name", ["load", "unload"])
async def test_load_and_unload_are_no_model_ids(name: str) -> None:
    reply = await call(make_app(), "GET", f"/v1/models/{name}")

    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert "POST" in reply.headers["allow"]


async def test_a_load_answers_in_the_documented_form() -> None:
    backend = ScriptedBackend()

    reply = await load(make_app(backend))

    assert reply.json == {
        "success": True,
        "model": "tiny",
        "backend": "fake",
        "message": "Model loaded successfully",
    }
    assert backend.calls == ["load tiny"]


async def test_an_unload_answers_in_the_documented_form_and_shows_in_the_list() -> None:
    app = make_app()
    assert (await call(app, "GET", "/v1/models")).json["data"][0]["loaded"]

    reply = await unload(app)

    assert reply.json["message"] == "Model unloaded successfully"
    assert not (await call(app, "GET", "/v1/models")).json["data"][0]["loaded"]


async def test_a_loads_progress_is_streamed() -> None:
    reply = await load(make_app(), stream=True)

    assert reply.headers["content-type"].startswith("text/event-stream")
    assert [json.loads(frame) for frame in reply.frames[:-1]] == [
        {"phase": "loading", "done_bytes": 5, "total_bytes": 10, "fraction": 0.5},
        {"phase": "ready", "done_bytes": 10, "total_bytes": 10, "fraction": 1.0},
        {"success": True, "model": "tiny", "backend": "fake", "message": "Model loaded successfully"},
    ]
    assert reply.frames[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownModel("tiny"), 404, "model_not_found"),
        (UnusableModel("The file is not a GGUF"), 422, "validation_error"),
        (InsufficientMemory("The model needs 9 GB; 2 GB are free"), 503, "backend_unavailable"),
        (NotSupported("A remote server loads its own models"), 501, "not_implemented"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_load_that_fails_says_why(error: Exception, status: int, code: str, stream: bool) -> None:
    reply = await load(make_app(ScriptedBackend(load_steps=[error])), stream=stream)

    assert (reply.status, reply.error["code"]) == (status, code)


async def test_a_load_that_fails_after_its_first_progress_ends_with_an_error_frame() -> None:
    backend = ScriptedBackend(load_steps=[LoadProgress("loading", 1, 9), UnusableModel("Truncated")])

    reply = await load(make_app(backend), stream=True)

    assert json.loads(reply.frames[1])["error"]["message"] == "Truncated"
    assert reply.frames[2] == "[DONE]"


def test_a_silent_load_is_kept_alive() -> None:
    backend = ScriptedBackend(
        load_steps=[LoadProgress("loading", 1, 9), Pause(40), LoadProgress("ready", 9, 9)]
    )

    reply = run_virtual(load(make_app(backend, keep_alive_s=15), stream=True))

    assert reply.body.count(b": keep-alive") == 2


def test_a_load_beyond_the_deadline_is_a_timeout() -> None:
    backend = ScriptedBackend(load_steps=[Pause(400)])

    reply = run_virtual(load(make_app(backend, request_timeout_s=300)))

    assert (reply.status, reply.error["code"]) == (504, "timeout")


async def test_an_unload_during_a_load_is_a_conflict() -> None:
    backend = ScriptedBackend(unload_error=Conflict("A load of 'tiny' runs"))

    reply = await unload(make_app(backend))

    assert (reply.status, reply.error["code"]) == (409, "conflict")


@pytest.mark.parametrize("do", [load, unload])
@pytest.mark.parametrize("enabled", [False, True])
async def test_litellm_loads_and_unloads_nothing(do: Any, enabled: bool) -> None:
    backends = {
        "fake": ScriptedBackend(),
        **({"litellm": ScriptedBackend(kind="litellm")} if enabled else {}),
    }

    reply = await do(make_app(backends=backends), backend="litellm", model="gpt-4")

    assert (reply.status, reply.error["code"]) == (400, "backend_not_available")


@pytest.mark.parametrize("do", [load, unload])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "nope"}, 404, "model"),
        ({"backend": "nope"}, 400, "backend"),
        ({"model": None}, 422, "model"),
        ({"backend": None}, 422, "backend"),
        ({"model": 5}, 422, "model"),
        ({"api_base": "http://x"}, 422, "api_base"),
    ],
)
async def test_a_bad_control_request_is_refused(
    do: Any, fields: dict[str, Any], status: int, param: str
) -> None:
    backend = ScriptedBackend()

    reply = await do(make_app(backend), **fields)

    assert (reply.status, reply.error["param"]) == (status, param)
    assert backend.calls == []


async def test_leaving_a_load_stream_ends_it() -> None:
    backend = ScriptedBackend(load_steps=[LoadProgress("loading", 1, 9), Pause(3600)])
    body = json.dumps({"model": "tiny", "backend": "fake", "stream": True}).encode()
    connection = Connection(make_app(backend), "POST", "/v1/models/load", body=body)
    running = asyncio.create_task(connection.run())
    while not connection.reply.messages:  # noqa: ASYNC110
        await asyncio.sleep(0)

    connection.leave()

    await asyncio.wait_for(running, 1)


def test_a_list_never_waits_long_for_a_backend() -> None:
    async def twice() -> tuple[float, list[bool]]:
        backend = ScriptedBackend()
        app = make_app(backend)
        first = await call(app, "GET", "/v1/models")
        backend.health_s, backend.models = 0.9, (ModelStatus(id="tiny", state="unloaded"),)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(5)
        begun_at = loop.time()
        second = await call(app, "GET", "/v1/models")
        return loop.time() - begun_at, [reply.json["data"][0]["loaded"] for reply in (first, second)]

    took_s, loaded = run_virtual(twice())

    assert took_s < 0.1
    assert loaded == [True, True]


async def test_the_backends_are_listed_in_their_order() -> None:
    backends = {"vllm": ScriptedBackend(kind="vllm"), "fake": ScriptedBackend()}

    assert (await call(make_app(backends=backends), "GET", "/v1/backends")).json == {
        "backends": ["vllm", "fake"]
    }
