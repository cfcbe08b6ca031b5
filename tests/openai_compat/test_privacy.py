"""`privacy: local` keeps what is sent from every cloud, whoever asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.errors import BackendUnavailable
from models.card import ModelCard
from openai_compat.principals import digest_of
from tests.openai_compat.scripted_backend import ScriptedBackend, words
from tests.openai_compat.test_principals import file_of
from tests.openai_compat.wire import call, chat, make_app


def card(id: str, *kinds: str, **fields: Any) -> ModelCard:
    return ModelCard.model_validate({"id": id, "sources": {kind: {"name": id} for kind in kinds}, **fields})


class House:
    """A local model, a cloud's, and one that has both sources, the cloud's first."""

    def __init__(self, *cards: ModelCard, local: Any = None, **config: Any) -> None:
        self.local = ScriptedBackend(script=local or words("here"))
        self.cloud = ScriptedBackend(script=words("there"), kind="litellm")
        self.app = make_app(
            backends={"fake": self.local, "litellm": self.cloud},
            cards=cards or [card("tiny", "fake"), card("cloudy", "litellm"), card("both", "litellm", "fake")],
            **config,
        )


def principals(folder: Path) -> dict[str, Any]:
    """Tokens `kept`, whose caller is local, and `free`."""
    file = folder / "principals.json"
    kept = {"name": "kept", "token_sha256": digest_of(b"kept").hex(), "privacy": "local"}
    free = {"name": "free", "token_sha256": digest_of(b"free").hex()}
    file.write_bytes(file_of(kept, free))
    return {"principals_file": file}


async def test_a_clouds_model_is_refused_and_hears_nothing() -> None:
    house = House()

    reply = await chat(house.app, model="cloudy", privacy="local")

    assert reply.status == 400
    assert (reply.error["code"], reply.error["param"]) == ("unsupported_parameter", "privacy")
    assert house.cloud.requests == []


async def test_a_local_model_is_served_as_ever() -> None:
    assert (await chat(House().app, privacy="local")).status == 200


@pytest.mark.parametrize("value", ["any", None])
async def test_any_and_null_ask_for_nothing(value: str | None) -> None:
    reply = await chat(House().app, model="cloudy", privacy=value)

    assert reply.status == 200
    assert "x-llm-ignored" not in reply.headers


@pytest.mark.parametrize("value", ["Local", "", 1, True, ["local"]])
async def test_other_values_are_no_privacy(value: object) -> None:
    reply = await chat(House().app, privacy=value)

    assert (reply.status, reply.error["param"]) == (422, "privacy")


async def test_a_model_with_a_local_source_is_served_from_it() -> None:
    house = House()

    assert (await chat(house.app, model="both")).json["backend"] == "litellm"
    assert (await chat(house.app, model="both", privacy="local")).json["backend"] == "fake"
    assert (await chat(house.app, model="both", privacy="local", backend="litellm")).status == 400


async def test_a_name_that_only_a_cloud_can_know_is_refused() -> None:
    house = House(default_backend="litellm")

    assert (await chat(house.app, model="openai/gpt-4o")).status == 200
    assert (await chat(house.app, model="openai/gpt-4o", privacy="local")).status == 400
    assert len(house.cloud.requests) == 1


async def test_a_fallback_in_a_cloud_is_passed_over() -> None:
    house = House(
        card("tiny", "fake", fallbacks=["cloudy"]),
        card("cloudy", "litellm"),
        local=[BackendUnavailable("The runner is dead")],
    )

    assert (await chat(house.app)).json["model"] == "cloudy"
    assert (await chat(house.app, privacy="local")).error["message"] == "The runner is dead"
    assert len(house.cloud.requests) == 1


async def test_a_callers_rule_holds_whatever_his_request_says(tmp_path: Path) -> None:
    house = House(**principals(tmp_path))

    for asked in ({}, {"privacy": "any"}, {"privacy": "local"}):
        for token, status in (("kept", 400), ("free", 400 if asked == {"privacy": "local"} else 200)):
            headers = {"authorization": f"Bearer {token}"}
            body = {"model": "cloudy", "messages": [{"role": "user", "content": "Hi"}], **asked}
            reply = await call(house.app, "POST", "/v1/chat/completions", body, headers=headers)
            assert reply.status == status, (asked, token)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v1/rerank", {"query": "Hi", "documents": ["Ho"]}),
        ("/v1/score", {"text_1": "Hi", "text_2": "Ho"}),
    ],
)
async def test_every_way_to_a_model_keeps_it(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    house = House(card("cloudy", "litellm", capabilities=["completion", "embeddings", "rerank"]))
    by_request = await call(house.app, "POST", path, {"model": "cloudy", "privacy": "local", **body})
    house = House(
        card("cloudy", "litellm", capabilities=["completion", "embeddings", "rerank"]), **principals(tmp_path)
    )
    by_caller = await call(
        house.app, "POST", path, {"model": "cloudy", **body}, headers={"authorization": "Bearer kept"}
    )

    for reply in (by_request, by_caller):
        assert (reply.status, reply.error["param"]) == (400, "privacy")
    assert house.cloud.requests == []


async def test_the_default_model_of_completions_keeps_it() -> None:
    house = House(card("cloudy", "litellm"), default_backend="litellm")

    assert (
        await call(house.app, "POST", "/v1/completions", {"prompt": "Hi", "privacy": "local"})
    ).status == 400
    house = House(card("cloudy", "litellm"), default_backend="litellm", default_model="cloudy")
    assert (
        await call(house.app, "POST", "/v1/completions", {"prompt": "Hi", "privacy": "local"})
    ).status == 400
    assert house.cloud.requests == []
