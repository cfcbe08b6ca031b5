"""Text completions, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import NotSupported
from backends.types import (
    ChoiceFinished,
    Finished,
    Started,
    TextDelta,
    TextPrompt,
    TokenLogprob,
    TokenLogprobs,
    TokenPrompt,
    Usage,
)
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.wire import Reply, call, card, make_app


async def complete(app: Any, **fields: Any) -> Reply:
    return await call(app, "POST", "/v1/completions", {"prompt": "Once", **fields})


async def test_an_answer_has_the_documented_form() -> None:
    document = (await complete(make_app(), model="tiny")).json

    assert document.pop("id").startswith("cmpl-")
    assert isinstance(document.pop("created"), int)
    assert document == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hello!", "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "backend": "fake",
    }


async def test_a_stream_has_chunks_of_the_same_form() -> None:
    reply = await complete(make_app(), stream=True, stream_options={"include_usage": True})

    chunks = reply.chunks
    assert {(chunk["id"], chunk["object"], chunk["created"]) for chunk in chunks} == {
        (chunks[0]["id"], "text_completion", chunks[0]["created"])
    }
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "Hello", "finish_reason": None}],
        [{"index": 0, "text": "!", "finish_reason": None}],
        [{"index": 0, "text": "", "finish_reason": "stop"}],
        [],
    ]
    assert chunks[-1]["usage"]["total_tokens"] == 7


async def test_choices_are_counted_over_prompts_and_n() -> None:
    backend = ScriptedBackend()

    reply = await complete(make_app(backend), prompt=["a", "b"], n=2)

    assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2, 3]
    assert backend.requests[0].prompts == (TextPrompt(text="a"), TextPrompt(text="b"))


async def test_token_ids_reach_the_backend_as_they_are() -> None:
    backend = ScriptedBackend()

    await complete(make_app(backend), prompt=[[1, 2], [3]])

    assert backend.requests[0].prompts == (TokenPrompt(token_ids=[1, 2]), TokenPrompt(token_ids=[3]))


async def test_echo_is_the_backends_work() -> None:
    backend = ScriptedBackend()

    await complete(make_app(backend), echo=True)

    assert backend.requests[0].echo


async def test_no_model_is_the_configured_default() -> None:
    app = make_app(cards=[card("first"), card("second")], default_model="second")

    assert (await complete(app)).json["model"] == "second"


async def test_no_model_and_no_default_is_the_backends_first_card() -> None:
    app = make_app(cards=[card("first"), card("second")])

    assert (await complete(app, model=None)).json["model"] == "first"


async def test_no_model_on_a_named_backend_is_a_model_of_that_backend() -> None:
    cards = [card("here"), card("there", sources={"vllm": {"name": "x"}})]
    backends = {"fake": ScriptedBackend(), "vllm": ScriptedBackend(kind="vllm")}
    app = make_app(cards=cards, backends=backends, default_model="here")

    document = (await complete(app, backend="vllm")).json

    assert (document["model"], document["backend"]) == ("there", "vllm")


async def test_no_model_at_all_is_a_validation_error() -> None:
    app = make_app(cards=[card("there", sources={"vllm": {"name": "x"}})])

    reply = await complete(app)

    assert (reply.status, reply.error["param"]) == (422, "model")


async def test_a_model_on_a_backend_without_a_source_for_it_is_not_available() -> None:
    backends = {"fake": ScriptedBackend(), "vllm": ScriptedBackend(kind="vllm")}
    app = make_app(backends=backends)

    reply = await complete(app, model="tiny", backend="vllm")

    assert (reply.status, reply.error["code"]) == (400, "backend_not_available")


async def test_a_backend_without_text_completion_is_501() -> None:
    backend = ScriptedBackend(script=[NotSupported("Backend 'fake' has no text completion")])

    reply = await complete(make_app(backend))

    assert (reply.status, reply.error["code"]) == (501, "not_implemented")


@pytest.mark.parametrize("field", [{"suffix": "x"}, {"best_of": 2}])
async def test_what_cannot_be_honoured_is_400(field: dict[str, Any]) -> None:
    reply = await complete(make_app(), **field)

    assert (reply.status, reply.error["param"]) == (400, next(iter(field)))


async def test_a_model_that_makes_only_embeddings_is_400() -> None:
    reply = await complete(make_app(cards=[card(capabilities=["embeddings"])]))

    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_parallel_lists_with_offsets_in_characters(stream: bool) -> None:
    def token(data: bytes) -> TokenLogprobs:
        return TokenLogprobs(TokenLogprob(data, -1.0), (TokenLogprob(b"a", -0.5),))

    script = [
        Started(0.0, 5),
        TextDelta(0, "é", 1, (token("é".encode()),)),
        TextDelta(0, "😀b", 3, (token(b"\xf0\x9f"), token(b"\x98\x80"), token(b"b"))),
        ChoiceFinished(0, "stop"),
        Finished(Usage(5, 4)),
    ]

    reply = await complete(make_app(ScriptedBackend(script=script)), logprobs=1, stream=stream)

    if stream:
        parts = [c["logprobs"] for chunk in reply.chunks for c in chunk["choices"] if "logprobs" in c]
        found = {key: [value for part in parts for value in part[key]] for key in parts[0]}
    else:
        found = reply.json["choices"][0]["logprobs"]
    assert found["tokens"] == ["é", "\\xf0\\x9f", "\\x98\\x80", "b"]
    assert found["token_logprobs"] == [-1.0] * 4
    assert found["text_offset"] == [0, 1, 1, 2]
    assert found["top_logprobs"][0] == {"a": -0.5, "é": -1.0}


async def test_a_token_without_a_probability_is_null() -> None:
    first = TokenLogprobs(TokenLogprob(b"Once", float("nan")))
    script = [
        Started(0.0, 1),
        TextDelta(0, "Once", 0, (first,)),
        ChoiceFinished(0, "stop"),
        Finished(Usage(1, 0)),
    ]
    backend = ScriptedBackend(script=script, features=frozenset({"echo_logprobs"}))

    found = (await complete(make_app(backend), echo=True, logprobs=1)).json["choices"][0]["logprobs"]

    assert (found["token_logprobs"], found["top_logprobs"]) == ([None], [None])
