"""`POST /v1/embeddings` on the wire."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from backends.embedding import EmbeddingRequest, Embeddings
from backends.errors import BackendFailed, ContextLengthExceeded, NotSupported, Overloaded
from backends.types import ModelStatus, TextPrompt, TokenPrompt
from openai_compat.admission import Admission
from openai_compat.config import WireConfig
from tests.openai_compat.embedding_backend import EmbeddingBackend, embed, embedding_app, pack
from tests.openai_compat.scripted_backend import Hang, ScriptedBackend
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import Connection, call, card, chat, make_app


async def test_a_string_becomes_one_vector() -> None:
    reply = await embed(embedding_app())

    assert reply.status == 200
    assert reply.json == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": pytest.approx([0.6, -0.8, 0.0], abs=1e-7)}],
        "model": "vec",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "backend": "fake",
    }


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("Hi", [TextPrompt(text="Hi")]),
        (["a", "b"], [TextPrompt(text="a"), TextPrompt(text="b")]),
        ([1, 2, 3], [TokenPrompt(token_ids=[1, 2, 3])]),
        ([[1], [2, 3]], [TokenPrompt(token_ids=[1]), TokenPrompt(token_ids=[2, 3])]),
        ("   ", [TextPrompt(text="   ")]),
    ],
)
async def test_each_form_of_input_reaches_the_backend(value: Any, inputs: list[Any]) -> None:
    backend = EmbeddingBackend()

    reply = await embed(embedding_app(backend), input=value)

    assert [entry["index"] for entry in reply.json["data"]] == list(range(len(inputs)))
    assert list(backend.asked[0].inputs) == inputs


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("", "input"),
        ([], "input"),
        ([""], "input.0"),
        (["a", ""], "input.1"),
        ([[]], "input.0"),
        ([[1], []], "input.1"),
        (["a", 1], "input"),
        ([1, "a"], "input"),
        ([1.5], "input.0"),
        ([True], "input"),
        ([-1], "input.0"),
        ([None], "input"),
        ({"text": "a"}, "input"),
        (7, "input"),
        (None, "input"),
        (["x"] * 2049, "input"),
    ],
)
async def test_an_input_that_is_none_is_refused(value: Any, param: str) -> None:
    backend = EmbeddingBackend()

    reply = await embed(embedding_app(backend), input=value)

    assert (reply.status, reply.error["param"], backend.asked) == (422, param, [])


async def test_the_most_inputs_that_are_taken_come_back_in_order() -> None:
    reply = await embed(embedding_app(), input=["x"] * 2048)

    assert [entry["embedding"][2] for entry in reply.json["data"]] == list(range(2048))


async def test_base64_holds_little_endian_single_precision() -> None:
    reply = await embed(embedding_app(), encoding_format="base64")

    raw = base64.b64decode(reply.json["data"][0]["embedding"], validate=True)
    assert struct.unpack("<3f", raw) == pytest.approx((0.6, -0.8, 0.0))


async def test_numbers_written_out_are_exactly_the_vectors() -> None:
    vector = pack(0.1, 1 / 3, -1e-30, 3.4e38)
    backend = EmbeddingBackend(answer=lambda _: Embeddings((vector,), 1))

    reply = await embed(embedding_app(backend))

    assert pack(*reply.json["data"][0]["embedding"]) == vector


@pytest.mark.parametrize(
    "fields",
    [
        {"encoding_format": "int8"},
        {"dimensions": 0},
        {"dimensions": 2.5},
        {"dimensions": True},
        {"dimensions": 70_000},
        {"model": ""},
        {"model": None},
        {"user": 5},
        {"api_base": "http://elsewhere"},
        {"extra_headers": {}},
    ],
)
async def test_a_field_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    reply = await embed(embedding_app(), **fields)

    assert (reply.status, reply.error["param"]) == (422, next(iter(fields)))


async def test_dimensions_reach_the_backend() -> None:
    backend = EmbeddingBackend()

    await embed(embedding_app(backend), dimensions=2)

    assert backend.asked[0].dimensions == 2


async def test_unknown_and_harmless_fields_are_named() -> None:
    reply = await embed(embedding_app(), user="me", shiny=1, encoding_format=None)

    assert reply.status == 200
    assert reply.headers["x-llm-ignored"] == "user, shiny"


async def test_strict_refuses_what_is_unknown_and_nothing_else() -> None:
    app = embedding_app()

    refused = await embed(app, query="strict=1", shiny=1)
    taken = await embed(app, query="strict=1", user="me")

    assert (refused.status, refused.error["param"], taken.status) == (422, "shiny", 200)


async def test_an_alias_is_answered_with_the_cards_id() -> None:
    reply = await embed(embedding_app(), model="vectors")

    assert reply.json["model"] == "vec"


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "nope"}, 404, "model_not_found"),
        ({"backend": "vllm"}, 400, "backend_not_available"),
        ({"model": "tiny"}, 400, "unsupported_parameter"),
    ],
)
async def test_model_and_backend_are_judged_after_the_body(
    fields: dict[str, Any], status: int, code: str
) -> None:
    backend = EmbeddingBackend()

    reply = await embed(embedding_app(backend), **fields)

    assert (reply.status, reply.error["code"], backend.asked) == (status, code, [])


async def test_a_chat_model_asked_for_vectors_is_told_what_it_can() -> None:
    reply = await embed(embedding_app(), model="tiny")

    assert "chat, completion" in reply.error["message"]


async def test_a_model_of_vectors_asked_to_chat_is_told_what_it_can() -> None:
    reply = await chat(embedding_app(), model="vec")

    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")
    assert "embeddings, rerank" in reply.error["message"]


async def test_a_backend_without_embeddings_is_501() -> None:
    app = make_app(ScriptedBackend(), cards=[card("vec", capabilities=["embeddings"])])

    reply = await embed(app)

    assert (reply.status, reply.error["code"]) == (501, "not_implemented")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (
            ContextLengthExceeded(prompt_tokens=300, context_length=256, param="input"),
            400,
            "context_length_exceeded",
        ),
        (Overloaded("Too many embeddings wait", retry_after_s=2), 503, "concurrency_limit"),
        (NotSupported("no"), 501, "not_implemented"),
        (BackendFailed("broken"), 500, "backend_error"),
        (ValueError("a secret"), 500, "backend_error"),
    ],
)
async def test_an_error_of_the_backend_has_its_status(error: Exception, status: int, code: str) -> None:
    reply = await embed(embedding_app(EmbeddingBackend(error=error)))

    assert (reply.status, reply.error["code"]) == (status, code)
    assert "secret" not in reply.body.decode()


async def test_a_text_that_is_too_long_is_told_both_numbers() -> None:
    error = ContextLengthExceeded(prompt_tokens=300, context_length=256, param="input")

    reply = await embed(embedding_app(EmbeddingBackend(error=error)))

    assert (reply.error["prompt_tokens"], reply.error["context_length"]) == (300, 256)
    assert "256 tokens" in reply.error["message"]
    assert "300 tokens" in reply.error["message"]


async def test_a_refusal_of_the_batch_says_when_to_try_again() -> None:
    error = Overloaded("Too many embeddings wait", retry_after_s=2)

    reply = await embed(embedding_app(EmbeddingBackend(error=error)))

    assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("2", "2000")


async def test_an_answer_with_too_few_vectors_is_no_answer() -> None:
    def one(_: EmbeddingRequest) -> Embeddings:
        return Embeddings((pack(1.0),), 1)

    reply = await embed(embedding_app(EmbeddingBackend(answer=one)), input=["a", "b"])

    assert reply.status == 500


async def test_embeddings_take_no_completion_slot_and_completions_none_of_theirs() -> None:
    backend = EmbeddingBackend(script=[Hang()], hangs=True)
    app = embedding_app(backend, max_concurrent_completions=1, max_concurrent_embeddings=1)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    chatting = Connection(app, "POST", "/v1/chat/completions", body=body)
    talk = asyncio.create_task(chatting.run())
    await backend.reached.wait()
    backend.reached.clear()

    first = asyncio.create_task(embed(app))
    await backend.reached.wait()
    refused_embedding = await embed(app)
    refused_chat = await chat(app)
    backend.release.set()

    assert (await first).status == 200
    for reply in (refused_embedding, refused_chat):
        assert (reply.status, reply.error["code"]) == (503, "concurrency_limit")
        assert int(reply.headers["retry-after"]) >= 1
    chatting.leave()
    await talk


async def test_a_slot_is_free_again_after_every_kind_of_end() -> None:
    backend = EmbeddingBackend()
    app = embedding_app(backend, max_concurrent_embeddings=1)

    outcomes = []
    for error in (None, BackendFailed("broken"), ValueError("bug"), None):
        backend.error = error
        outcomes.append((await embed(app)).status)

    assert outcomes == [200, 500, 500, 200]


async def test_a_client_that_leaves_ends_the_work_and_frees_its_slot() -> None:
    backend = EmbeddingBackend(hangs=True)
    app = embedding_app(backend, max_concurrent_embeddings=1)
    body = json.dumps({"model": "vec", "input": "Hi"}).encode()
    connection = Connection(app, "POST", "/v1/embeddings", body=body)
    running = asyncio.create_task(connection.run())
    await backend.reached.wait()

    connection.leave()
    await running
    backend.hangs = False

    assert backend.given_up == 1
    assert connection.reply.messages == []
    assert (await embed(app)).status == 200


def test_a_request_that_takes_too_long_is_a_timeout() -> None:
    backend_box: list[EmbeddingBackend] = []

    async def scenario() -> Any:
        backend_box.append(EmbeddingBackend(hangs=True))
        return await embed(embedding_app(backend_box[0], request_timeout_s=30, load_wait_s=60))

    reply = run_virtual(scenario())

    assert (reply.status, reply.error["code"], backend_box[0].given_up) == (504, "timeout", 1)


def test_a_model_that_still_loads_is_told_so() -> None:
    async def scenario() -> Any:
        loading = (ModelStatus(id="vec", state="loading"),)
        backend = EmbeddingBackend(hangs=True, models=loading)
        return await embed(embedding_app(backend, load_wait_s=5))

    reply = run_virtual(scenario())

    assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
    assert "loading" in reply.error["message"]


async def test_draining_refuses_new_embeddings_and_waits_for_running_ones() -> None:
    backend = EmbeddingBackend(hangs=True)
    app = embedding_app(backend)
    running = asyncio.create_task(embed(app))
    await backend.reached.wait()

    app.state.drain()
    refused = await embed(app)
    idle_early = await app.state.idle(0.01)
    backend.release.set()
    answered = await running

    assert (refused.status, refused.error["code"], idle_early) == (503, "backend_unavailable", False)
    assert answered.status == 200
    assert await app.state.idle(1)


async def test_the_answer_says_who_made_it_and_how_long_we_took() -> None:
    reply = await embed(embedding_app())

    assert reply.headers["x-llm-backend"] == "fake"
    assert float(reply.headers["x-llm-overhead-ms"]) < 1000
    assert reply.headers["content-length"] == str(len(reply.body))


async def test_tokens_are_counted_under_the_models_name() -> None:
    app = embedding_app()

    await embed(app)

    text = (await call(app, "GET", "/metrics")).body.decode()
    assert 'llm:prompt_tokens_total{backend="fake",model="vec"} 7' in text


async def test_the_limit_holds_over_all_workers(tmp_path: Path) -> None:
    config = WireConfig(
        default_backend="fake", max_concurrent_embeddings=1, num_workers=2, shared_dir=tmp_path
    )
    first, second = Admission.for_embeddings(config), Admission.for_embeddings(config)

    async with first.slot("a"):
        with pytest.raises(Overloaded):
            await second.acquire("b")
    slot = await second.acquire("b")

    slot.release()
    assert await second.idle(1)
