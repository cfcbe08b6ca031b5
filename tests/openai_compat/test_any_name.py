"""Models without a card: names that only a cloud's provider knows."""

from __future__ import annotations

from typing import Any

import pytest

from models.card import ModelCard, RemoteSource
from models.catalogue import Catalogue
from openai_compat.serving.gateway import Gateway
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.wire import call, card, make_app

NEW = "openrouter/somebody/new-model"


def cloud() -> ScriptedBackend:
    return ScriptedBackend(kind="litellm", models=())


def chat(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


def catalogue_of(app: Any) -> Catalogue:
    gateway: Gateway = app.state.gateway
    return gateway.catalogue


def offer(app: Any, *ids: str, prefixes: tuple[str, ...] = ()) -> None:
    cards = [
        ModelCard.model_validate(
            {
                "id": name,
                "backend": "litellm",
                "sources": {"litellm": RemoteSource(name=name)},
                "context_length": 1000,
                "price": {"prompt": 2.5, "completion": 10.0},
            }
        )
        for name in ids
    ]
    catalogue_of(app).offer("litellm", cards, prefixes=prefixes)


async def test_a_request_that_names_the_cloud_may_name_any_model() -> None:
    backend = cloud()
    app = make_app(backends={"fake": ScriptedBackend(), "litellm": backend})

    reply = await call(app, "POST", "/v1/chat/completions", chat(NEW, backend="litellm"))

    assert reply.status == 200
    assert (reply.json["model"], reply.json["backend"]) == (NEW, "litellm")
    assert backend.requests[0].model == NEW


async def test_a_service_whose_default_is_the_cloud_takes_any_model() -> None:
    app = make_app(backends={"litellm": cloud()}, default_backend="litellm", cards=[])

    assert (await call(app, "POST", "/v1/chat/completions", chat("gpt-99"))).status == 200


async def test_elsewhere_an_unknown_model_is_unknown_though_the_cloud_is_there() -> None:
    app = make_app(backends={"fake": ScriptedBackend(), "litellm": cloud()})

    reply = await call(app, "POST", "/v1/chat/completions", chat(NEW))

    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_a_provider_with_a_key_is_found_by_its_name_alone() -> None:
    app = make_app(backends={"fake": ScriptedBackend(), "litellm": cloud()})
    offer(app, prefixes=("openrouter",))

    reply = await call(app, "POST", "/v1/chat/completions", chat(NEW))

    assert (reply.status, reply.json["backend"]) == (200, "litellm")


@pytest.mark.parametrize("name", ["../x", "a//b", "http://x/y", "/etc/passwd", "a\\b", " a"])
async def test_what_cannot_be_a_name_is_unknown_to_the_cloud_as_well(name: str) -> None:
    backend = cloud()
    app = make_app(backends={"litellm": backend}, default_backend="litellm", cards=[])

    reply = await call(app, "POST", "/v1/chat/completions", chat(name))

    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert backend.requests == []


async def test_a_local_model_does_not_go_to_the_cloud_by_naming_it() -> None:
    app = make_app(backends={"fake": ScriptedBackend(), "litellm": cloud()})

    reply = await call(app, "POST", "/v1/chat/completions", chat("tiny", backend="litellm"))

    assert (reply.status, reply.error["code"]) == (400, "backend_not_available")


async def test_offered_models_are_listed_as_loaded_with_their_price() -> None:
    app = make_app(backends={"fake": ScriptedBackend(), "litellm": cloud()})
    offer(app, "gpt-4o")

    entries = (await call(app, "GET", "/v1/models", query="backend=litellm")).json["data"]

    assert [(e["id"], e["loaded"], e["context_length"]) for e in entries] == [("gpt-4o", True, 1000)]
    assert entries[0]["price"] == {"unit": "USD per million tokens", "prompt": 2.5, "completion": 10.0}
    assert (await call(app, "GET", "/v1/models/gpt-4o")).json == entries[0]


async def test_nothing_is_loaded_on_a_cloud_that_is_unhealthy() -> None:
    backend = cloud()
    backend.healthy = False
    app = make_app(backends={"fake": ScriptedBackend(), "litellm": backend})
    offer(app, "gpt-4o")

    assert (await call(app, "GET", "/v1/models/gpt-4o")).json["loaded"] is False


async def test_a_model_that_a_cloud_happens_to_offer_is_nobodys_default() -> None:
    backend = cloud()
    app = make_app(backends={"litellm": backend}, default_backend="litellm", cards=[card()])
    offer(app, "babbage-002")

    reply = await call(app, "POST", "/v1/completions", {"prompt": "Once"})

    assert (reply.status, reply.error["param"]) == (422, "model")
    assert backend.requests == []


async def test_no_name_is_described_that_nobody_knows() -> None:
    app = make_app(backends={"litellm": cloud()}, default_backend="litellm", cards=[])

    assert (await call(app, "GET", "/v1/models/gpt-99")).status == 404


async def test_a_name_without_a_card_is_no_label_of_a_metric() -> None:
    app = make_app(backends={"litellm": cloud()}, default_backend="litellm", cards=[card()])
    await call(app, "POST", "/v1/chat/completions", chat("made-up-by-a-client"))

    scrape = (await call(app, "GET", "/metrics")).body.decode()

    assert "made-up-by-a-client" not in scrape
    assert 'model_name="unknown"' in scrape or 'model="unknown"' in scrape
