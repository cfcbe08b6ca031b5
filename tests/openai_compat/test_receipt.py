"""`"receipt": true`: what comes back, where in a stream, and what must not be in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from backends.embedding import EmbeddingRequest, Embeddings
from backends.errors import BackendUnavailable
from backends.provenance import Provenance
from backends.types import (
    ChoiceFinished,
    Event,
    Finished,
    GenerationRequest,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from openai_compat.receipts.document import MAX_REQUEST_BYTES
from openai_compat.receipts.seal import seal_of
from tests.openai_compat.embedding_backend import EmbeddingBackend, embed, embedding_app, same_vectors
from tests.openai_compat.scripted_backend import Hang, Script, ScriptedBackend, hello
from tests.openai_compat.wire import HELLO, Connection, Reply, call, card, chat, make_app

PROVENANCE = Provenance(
    engine="test-engine", engine_version="7", model_sha256="ab" * 32, repeats="exact", context_length=2048
)


def told(request: GenerationRequest) -> list[Event]:
    """ "Hello!" with where it comes from."""
    *events, last = hello(request)
    return [*events, msgspec.structs.replace(last, provenance=PROVENANCE, prefill_ms=2.0, decode_ms=3.0)]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def receipt_for(script: Script = told, **fields: Any) -> dict[str, Any]:
    reply = await chat(make_app(ScriptedBackend(script=script)), receipt=True, **fields)
    found: dict[str, Any] = reply.json["llm_receipt"]
    return found


async def test_an_answer_has_a_receipt_only_when_it_was_asked_for() -> None:
    app = make_app(ScriptedBackend(script=told))

    assert "llm_receipt" in (await chat(app, receipt=True)).json
    assert "llm_receipt" not in (await chat(app)).json
    assert "llm_receipt" not in (await chat(app, receipt=False)).json
    assert "llm_receipt" not in (await chat(app, receipt=None)).json


@pytest.mark.parametrize("value", ["yes", 1, 0, [], {}, "true"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
async def test_what_is_no_boolean_is_a_validation_error(path: str, value: Any) -> None:
    body = {**HELLO, "prompt": "Hi", "input": "Hi", "receipt": value}
    reply = await call(make_app(), "POST", path, body)

    assert (reply.status, reply.error["param"]) == (422, "receipt")


async def test_the_backend_is_asked_for_it_by_a_flag_and_by_nothing_else() -> None:
    backend = ScriptedBackend(script=told)
    app = make_app(backend)
    await chat(app, temperature=0)
    await chat(app, temperature=0, receipt=True)
    plain, asked = backend.requests

    assert (plain.wants_provenance, asked.wants_provenance) == (False, True)
    assert msgspec.structs.replace(asked, wants_provenance=False, request_id="") == msgspec.structs.replace(
        plain, request_id=""
    )


async def test_it_says_who_answered_and_how() -> None:
    receipt = await receipt_for(temperature=0, max_tokens=9)

    assert receipt["version"] == 1
    assert (receipt["route"], receipt["backend"]) == ("/v1/chat/completions", "fake")
    assert receipt["model"]["id"] == receipt["model"]["asked"] == "tiny"
    assert receipt["model"]["sha256"] == "ab" * 32
    assert receipt["engine"] == {"name": "test-engine", "version": "7", "machine": None}
    assert (receipt["repeats"], receipt["retries"], receipt["fallbacks"]) == ("exact", 0, [])
    assert receipt["usage"]["cached_tokens"] == 3
    assert receipt["timing"] == {"queue_ms": pytest.approx(0, abs=50), "prefill_ms": 2.0, "decode_ms": 3.0}
    assert receipt["cost_usd"] is None


async def test_its_digests_are_those_of_the_texts() -> None:
    (output,) = (await receipt_for())["output"]

    assert output == {
        "index": 0,
        "finish_reason": "stop",
        "text_sha256": sha256("Hello!"),
        "text_chars": 6,
    }


async def test_thoughts_and_calls_have_digests_of_their_own_and_call_ids_none() -> None:
    def script(call_id: str) -> list[Event]:
        return [
            Started(0.0, 5),
            ReasoningDelta(0, "Hm, "),
            ReasoningDelta(0, "well."),
            ToolCallDelta(0, 0, '{"a"', call_id, "f"),
            ToolCallDelta(0, 0, ":1}"),
            ToolCallDelta(0, 1, "{}", call_id + "b", "g"),
            ChoiceFinished(0, "tool_calls"),
            Finished(Usage(5, 4)),
        ]

    (first,) = (await receipt_for(script("x")))["output"]
    (second,) = (await receipt_for(script("y")))["output"]

    assert first == second
    assert first["reasoning_sha256"] == sha256("Hm, well.")
    assert first["tool_calls_sha256"] == sha256('[["f","{\\"a\\":1}"],["g","{}"]]')
    assert first["text_sha256"] == sha256("")


async def test_its_sampling_is_what_took_effect_of_request_card_and_defaults() -> None:
    app = make_app(
        ScriptedBackend(script=told), cards=[card(sampling={"top_p": 0.5, "max_tokens": 40, "stop": ["x"]})]
    )
    reply = await chat(app, receipt=True, max_completion_tokens=20, logit_bias={"5": 1})
    sampling = reply.json["llm_receipt"]["sampling"]

    assert (sampling["temperature"], sampling["top_p"], sampling["max_tokens"]) == (0.7, 0.5, 20)
    assert (sampling["stop"], sampling["logit_bias"]) == (["x"], {"5": 1.0})
    assert not {"explicit", "grammar", "logprobs"} & sampling.keys()


async def test_a_value_that_the_engine_changed_is_the_one_that_took_effect() -> None:
    used = msgspec.structs.replace(PROVENANCE, used={"max_tokens": 7, "temperature": None})
    receipt = await receipt_for(
        [Started(0.0, 5), ChoiceFinished(0, "stop"), Finished(Usage(5, 0), provenance=used)], max_tokens=100
    )

    assert (receipt["sampling"]["max_tokens"], receipt["sampling"]["temperature"]) == (7, None)
    assert {"field": "max_tokens", "from": 100, "to": 7} in receipt["rewritten"]
    assert {"field": "temperature", "from": 0.7, "to": None} in receipt["rewritten"]


async def test_a_seed_is_drawn_where_the_caller_gave_none_and_is_the_one_that_was_used() -> None:
    backend = ScriptedBackend(script=told)
    app = make_app(backend)
    seeds = {(await chat(app, receipt=True)).json["llm_receipt"]["sampling"]["seed"] for _ in range(3)}

    assert seeds == {request.sampling.seed for request in backend.requests}
    assert len(seeds) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)


async def test_the_callers_own_seed_stays() -> None:
    receipt = await receipt_for(seed=-(2**63))

    assert receipt["sampling"]["seed"] == -(2**63)
    assert not any(entry["field"] == "seed" for entry in receipt["rewritten"])


async def test_no_seed_is_drawn_for_greedy_answers_nor_without_a_receipt() -> None:
    backend = ScriptedBackend(script=told)
    app = make_app(backend)
    await chat(app, receipt=True, temperature=0)
    await chat(app)

    assert [request.sampling.seed for request in backend.requests] == [None, None]


async def test_no_seed_is_drawn_for_a_cloud() -> None:
    cloud = ScriptedBackend(script=told, kind="litellm")
    app = make_app(
        backends={"litellm": cloud},
        cards=[card(sources={"litellm": {"name": "openai/x"}})],
        default_backend="litellm",
    )
    reply = await chat(app, receipt=True)

    assert reply.json["llm_receipt"]["sampling"]["seed"] is None
    assert cloud.requests[0].sampling.seed is None


async def test_ignored_and_rewritten_fields_are_told() -> None:
    app = make_app(ScriptedBackend(script=told), cards=[card(aliases=["alias"])])
    reply = await chat(
        app,
        receipt=True,
        model="alias",
        max_completion_tokens=5,
        top_k=-1,
        user="me",
        wings=2,
        temperature=0,
        messages=[
            {"role": "function", "name": "f", "content": "1"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
    )
    receipt = reply.json["llm_receipt"]

    assert receipt["ignored"] == ["user", "wings"]
    assert receipt["rewritten"] == [
        {"field": "model", "from": "alias", "to": "tiny"},
        {"field": "max_completion_tokens", "as": "max_tokens"},
        {"field": "top_k", "from": -1, "to": 0},
        {"field": "messages[0].role", "from": "function", "to": "tool"},
        {"field": "messages[1].content", "from": "parts", "to": "text"},
    ]


async def test_it_repeats_the_fields_of_the_request_that_count_and_no_others() -> None:
    receipt = await receipt_for(
        user="me", metadata={"key": "sk-secret"}, my_key="sk-secret", stop="x", n=None
    )

    assert receipt["request"] == {**HELLO, "stop": "x"}
    assert "sk-secret" not in json.dumps(receipt)


async def test_a_long_request_is_not_repeated() -> None:
    content = "x" * MAX_REQUEST_BYTES
    receipt = await receipt_for(messages=[{"role": "user", "content": content}])

    assert receipt["request"] is None
    assert receipt["sha256"] == seal_of(receipt)


async def test_a_request_that_is_nested_too_deeply_to_be_repeated_is_answered_all_the_same() -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"a": deep}
    reply = await chat(make_app(ScriptedBackend(script=told)), receipt=True, chat_template_kwargs=deep)

    assert reply.status == 200
    assert reply.json["llm_receipt"]["version"] == 1


async def test_a_number_that_few_readers_have_room_for_is_repeated_as_it_came() -> None:
    reply = await chat(
        make_app(ScriptedBackend(script=told)), receipt=True, chat_template_kwargs={"a": 10**40}
    )

    assert reply.json["llm_receipt"]["request"]["chat_template_kwargs"] == {"a": 10**40}


@pytest.mark.parametrize("indent", [None, 2])
async def test_its_own_digest_survives_another_writer(indent: int | None) -> None:
    receipt = await receipt_for(temperature=1.0, logit_bias={"5": 2.0}, stop=["ä\u2028"])
    again = json.loads(json.dumps(receipt, indent=indent, ensure_ascii=True, sort_keys=True))
    again["request"]["temperature"] = 1  # as JavaScript writes it

    assert again["sha256"] == seal_of(again)


async def test_a_changed_receipt_has_another_digest() -> None:
    receipt = await receipt_for()

    assert seal_of({**receipt, "backend": "vllm"}) != receipt["sha256"]


async def test_without_a_usage_chunk_the_last_choices_end_has_it() -> None:
    reply = await chat(make_app(ScriptedBackend(script=told)), receipt=True, stream=True, n=3)
    chunks = reply.chunks

    assert ["llm_receipt" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert reasons == ["stop"] * 3
    assert len(chunks[-1]["llm_receipt"]["output"]) == 3


async def test_with_a_usage_chunk_that_one_has_it() -> None:
    reply = await chat(
        make_app(ScriptedBackend(script=told)),
        receipt=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    *others, last = reply.chunks

    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)
    assert "llm_receipt" in last
    assert not any("llm_receipt" in chunk for chunk in others)


async def test_an_end_that_comes_before_the_usage_is_held_until_the_receipt_is_known() -> None:
    """vLLM says how a choice ended, and only then how many tokens it had."""
    events: Sequence[Any] = [
        [Started(0.0, 5)],
        [TextDelta(0, "Hello")],
        [ChoiceFinished(0, "length")],
        [Finished(Usage(5, 1), provenance=PROVENANCE)],
    ]
    reply = await chat(make_app(ScriptedBackend(script=events)), receipt=True, stream=True)

    assert [chunk["choices"][0]["finish_reason"] for chunk in reply.chunks] == [None, None, "length"]
    assert reply.chunks[-1]["llm_receipt"]["engine"]["name"] == "test-engine"


async def test_a_stream_says_the_same_with_a_receipt_as_without() -> None:
    app = make_app(ScriptedBackend(script=told))
    plain, proven = [await chat(app, stream=True, n=2, receipt=wanted) for wanted in (False, True)]

    def bare(reply: Reply) -> list[Any]:
        return [
            {key: value for key, value in chunk.items() if key not in ("id", "created", "llm_receipt")}
            for chunk in reply.chunks
        ]

    assert bare(plain) == bare(proven)


async def test_text_completions_have_receipts_in_both_forms() -> None:
    app = make_app(ScriptedBackend(script=told))
    body = {"model": "tiny", "prompt": ["a", "b"], "receipt": True}
    whole = await call(app, "POST", "/v1/completions", body)
    streamed = await call(app, "POST", "/v1/completions", {**body, "stream": True})

    assert whole.json["llm_receipt"]["route"] == "/v1/completions"
    assert whole.json["llm_receipt"]["request"]["prompt"] == ["a", "b"]
    assert streamed.chunks[-1]["llm_receipt"]["output"] == whole.json["llm_receipt"]["output"]


async def test_a_stream_that_breaks_off_has_no_receipt_and_no_end() -> None:
    script = [Started(0.0, 5), TextDelta(0, "Hel"), ChoiceFinished(0, "stop"), BackendUnavailable("gone")]
    reply = await chat(make_app(ScriptedBackend(script=script)), receipt=True, stream=True)

    assert "llm_receipt" not in reply.body.decode()
    assert '"finish_reason":"stop"' not in reply.body.decode()
    assert "error" in json.loads(reply.frames[-2])


async def test_a_client_that_leaves_gets_nothing_and_harms_nobody() -> None:
    backend = ScriptedBackend(script=[Started(0.0, 5), TextDelta(0, "Hel"), Hang()])
    app = make_app(backend)
    body = json.dumps({**HELLO, "receipt": True, "stream": True}).encode()
    connection = Connection(app, "POST", "/v1/chat/completions", body=body)
    running = asyncio.create_task(connection.run())
    await backend.reached.wait()
    connection.leave()
    reply = await running

    assert b"llm_receipt" not in reply.body
    assert (backend.running, backend.closed) == (0, 1)


async def test_models_that_failed_before_are_told() -> None:
    first = ScriptedBackend(script=[BackendUnavailable("down")])
    second = ScriptedBackend(script=told, kind="vllm")
    cards = [
        card(fallbacks=["spare"]),
        card("spare", sources={"vllm": {"name": "spare"}}),
    ]
    app = make_app(backends={"fake": first, "vllm": second}, cards=cards)
    receipt = (await chat(app, receipt=True)).json["llm_receipt"]

    assert receipt["fallbacks"] == [{"model": "tiny", "backend": "fake", "reason": "unavailable"}]
    assert (receipt["model"]["id"], receipt["model"]["asked"]) == ("spare", "tiny")
    assert receipt["backend"] == "vllm"


async def test_what_the_answer_cost_is_told() -> None:
    script = [Started(0.0, 5), ChoiceFinished(0, "stop"), Finished(Usage(5, 1, cost_usd=0.25))]

    assert (await receipt_for(script))["cost_usd"] == 0.25


async def test_a_backend_that_says_nothing_of_itself_is_unknown() -> None:
    receipt = await receipt_for(hello)

    assert (receipt["engine"]["name"], receipt["repeats"]) == ("unknown", "no")


def told_vectors(request: EmbeddingRequest) -> Embeddings:
    told = PROVENANCE if request.wants_provenance else None
    return msgspec.structs.replace(same_vectors(request), provenance=told)


async def test_embeddings_have_a_receipt_with_the_digests_of_their_vectors() -> None:
    app = embedding_app(EmbeddingBackend(answer=told_vectors))
    plain = (await embed(app, input=["a", "b"], user="me")).json
    proven = (await embed(app, input=["a", "b"], user="me", receipt=True)).json
    receipt = proven.pop("llm_receipt")

    assert plain == proven
    assert receipt["request"] == {"model": "vec", "input": ["a", "b"]}
    assert [output["index"] for output in receipt["output"]] == [0, 1]
    assert receipt["sampling"] is None
    assert receipt["engine"]["name"] == "test-engine"
    assert receipt["sha256"] == seal_of(receipt)
