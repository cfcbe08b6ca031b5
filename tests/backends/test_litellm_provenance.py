"""What LiteLLM's backend tells of an answer, and that asking for it changes no call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.litellm import patience as waits
from backends.litellm.patience import Patience
from backends.provenance import Provenance
from backends.types import ChatPrompt, GenerationRequest
from tests.backends.contract import events_of, finished_of, request
from tests.backends.embedding_contract import embedded
from tests.backends.embedding_contract import wanted as inputs
from tests.backends.litellm_backends import KEYS, a_backend, a_card, needs_litellm
from tests.backends.provider_upstreams.openai_embeddings import Embedder
from tests.backends.provider_upstreams.openai_format import Model, chunk, completion, error, stream
from tests.backends.provider_upstreams.server import Call, Upstream, Wire

pytestmark = needs_litellm

CHAT = ChatPrompt(messages=[{"role": "user", "content": "hi"}])


def asking(model: str = "gpt-4o", **fields: Any) -> GenerationRequest:
    return request(model, CHAT, wants_provenance=True, **fields)


async def told_by(wanted: GenerationRequest, *cards: Any, patience: Patience | None = None) -> Provenance:
    options = {} if patience is None else {"patience": patience}
    async with a_backend(*cards, **options) as backend:
        told = finished_of(await events_of(backend, wanted)).provenance
    assert told is not None
    return told


async def hello(_: Call, wire: Wire) -> None:
    await wire.json(200, completion("Hello", model="gpt-4o-2024-11-20"))


async def streamed(_: Call, wire: Wire) -> None:
    parts = [chunk({"content": "Hello"}, model="gpt-4o-2024-11-20"), chunk({}, finish_reason="stop")]
    await stream(wire, parts)


async def fails(_: Call, wire: Wire) -> None:
    await wire.json(503, error("no", kind="server_error"))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_providers_own_names_of_what_answered_are_told(provider: Upstream, is_stream: bool):
    provider.answer = streamed if is_stream else hello
    told = await told_by(asking(stream=is_stream))

    assert (told.engine, told.provider) == ("LiteLLM", "openai")
    assert told.engine_version
    assert told.provider_model is not None
    assert told.provider_model.startswith("gpt-4o")
    assert told.system_fingerprint == "fp_1"
    assert told.repeats == "no"
    assert told.why_not is not None
    assert "'openai'" in told.why_not


async def test_attempts_that_failed_are_counted(provider: Upstream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waits, "FIRST_DELAY_S", 0.01)
    provider.answers = [fails, fails, hello]

    assert (await told_by(asking(), patience=Patience(max_retries=2))).retries == 2
    provider.answers = [hello]
    assert (await told_by(asking())).retries == 0


async def test_the_provider_is_asked_the_same_with_and_without(provider: Upstream):
    provider.answer = Model()
    async with a_backend() as backend:
        for wants in (False, True):
            for is_stream in (False, True):
                wanted = request("gpt-4o", CHAT, wants_provenance=wants, stream=is_stream)
                await events_of(backend, wanted)

    assert provider.bodies[:2] == provider.bodies[2:]
    assert "receipt" not in json.dumps(provider.bodies)
    assert "provenance" not in json.dumps(provider.bodies)


async def test_no_key_and_no_address_is_in_it(provider: Upstream):
    provider.answer = hello
    told = repr(await told_by(asking()))

    assert not any(key in told for key in KEYS.values())
    assert "127.0.0.1" not in told
    assert str(provider.port) not in told


async def test_a_limit_that_the_model_does_not_reach_is_told_as_it_was_sent(provider: Upstream):
    provider.answer = hello
    told = await told_by(asking(max_tokens=900_000))
    (body,) = provider.bodies
    sent = body.get("max_tokens") or body.get("max_completion_tokens")

    assert told.used == {"max_tokens": sent}
    assert sent < 900_000


async def test_what_was_sent_as_asked_is_not_told_again(provider: Upstream):
    provider.answer = hello

    assert (await told_by(asking(temperature=0.3, top_p=0.5, seed=7))).used == {}


async def test_a_default_that_the_provider_refused_is_told_as_the_providers_own(provider: Upstream):
    async def picky(call: Call, wire: Wire) -> None:
        if "temperature" not in call.body:
            await hello(call, wire)
            return
        message = "Unsupported value: 'temperature' does not support 0.7 with this model."
        refusal = error(message, kind="invalid_request_error", param="temperature", code="unsupported_value")
        await wire.json(400, refusal)

    provider.answer = picky
    told = await told_by(asking(temperature=0.7))

    assert told.used == {"temperature": None}


async def test_a_cards_default_that_the_provider_has_no_name_for_is_told(provider: Upstream):
    provider.answer = hello
    told = await told_by(asking("mine", top_k=40), a_card("mine", "openai/gpt-4o"))

    assert told.used == {"top_k": None}


async def test_of_several_calls_each_name_is_told_once(provider: Upstream):
    provider.answer = streamed
    told = await told_by(asking(n=3, stream=True))

    assert told.system_fingerprint == "fp_1"


async def test_embeddings_say_who_made_them(provider: Upstream):
    provider.answer = Embedder()
    async with a_backend() as backend:
        found = await embedded(backend, inputs("text-embedding-3-small", "a", wants_provenance=True))

    assert found.provenance is not None
    assert found.provenance.provider_model == "text-embedding-3-small"
    assert (found.provenance.repeats, found.provenance.retries) == ("no", 0)
