"""Chat completions that are not streamed, from the request to the document."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backends.errors import BackendFailed, BackendUnavailable, ContextLengthExceeded, UpstreamAuthFailed
from backends.types import (
    ChatPrompt,
    ChoiceFinished,
    Finished,
    Started,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from models.errors import UnknownModel
from tests.openai_compat.scripted_backend import Hang, Pause, ScriptedBackend, words
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import HELLO, Connection, Reply, call, card, chat, make_app


def body() -> bytes:
    return json.dumps(HELLO).encode()


async def turns(number: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_an_answer_has_the_documented_form() -> None:
    reply = await chat(make_app())

    document = reply.json
    assert reply.status == 200
    assert document.pop("id").startswith("chatcmpl-")
    assert isinstance(document.pop("created"), int)
    assert document == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "backend": "fake",
    }


async def test_an_answer_has_the_headers_of_a_completion() -> None:
    headers = (await chat(make_app(), wings=2, user="u")).headers

    assert headers["x-llm-backend"] == "fake"
    assert float(headers["x-llm-queue-ms"]) >= 0
    assert float(headers["x-llm-overhead-ms"]) >= 0
    assert headers["x-llm-ignored"] == "wings, user"
    assert headers["x-request-id"]


async def test_nothing_ignored_is_no_header() -> None:
    assert "x-llm-ignored" not in (await chat(make_app(), temperature=1)).headers


async def test_ignored_names_stay_ascii_on_one_line_and_below_4_kib() -> None:
    names = ["a\r\nset-cookie: x", "ü", "a,b", *(f"field{i}" for i in range(2000))]

    value = (await chat(make_app(), **dict.fromkeys(names, 1))).headers["x-llm-ignored"]

    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= 4096
    assert value.startswith("a%0D%0Aset-cookie%3A%20x, %C3%BC, a%2Cb, field0")
    assert value.endswith(", ...")


async def test_every_choice_has_its_index_text_and_reason() -> None:
    choices = (await chat(make_app(), n=3)).json["choices"]

    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in choices} == {"Hello!"}


async def test_the_backend_is_asked_with_resolved_values() -> None:
    backend = ScriptedBackend()

    await chat(make_app(backend), temperature=0, n=2, stop="x", seed=7)

    request = backend.requests[0]
    assert (request.model, request.n, request.stream) == ("tiny", 2, False)
    assert request.prompts == (ChatPrompt(messages=[{"role": "user", "content": "Hi"}]),)
    assert request.sampling.explicit == {"temperature", "stop", "seed"}


async def test_the_backend_knows_a_request_by_an_id_of_its_own_that_begins_with_the_callers() -> None:
    backend = ScriptedBackend()
    app = make_app(backend)

    for _ in range(2):
        await call(app, "POST", "/v1/chat/completions", HELLO, headers={"x-request-id": "mine"})

    first, second = (request.request_id for request in backend.requests)
    assert first.startswith("mine.")
    assert first != second


async def test_an_alias_answers_with_the_cards_id() -> None:
    app = make_app(cards=[card(aliases=["gpt-4"])])

    assert (await chat(app, model="gpt-4")).json["model"] == "tiny"


async def test_logprobs_have_exact_bytes_and_no_infinity() -> None:
    half = TokenLogprobs(
        TokenLogprob(b"\xf0\x9f", -0.5), (TokenLogprob(b"\xf0\x9f", -0.5), TokenLogprob(b"a", float("-inf")))
    )
    script = [
        Started(0.0, 5),
        TextDelta(0, "x", 1, (half,)),
        ChoiceFinished(0, "stop", None, (half,)),
        Finished(Usage(5, 2)),
    ]

    reply = await chat(make_app(ScriptedBackend(script=script)), logprobs=True, top_logprobs=2)

    entry = {"token": "\\xf0\\x9f", "logprob": -0.5, "bytes": [0xF0, 0x9F]}
    other = {"token": "a", "logprob": -9999.0, "bytes": [97]}
    content = reply.json["choices"][0]["logprobs"]["content"]
    assert content == [{**entry, "top_logprobs": [entry, other]}] * 2


async def test_logprobs_are_absent_unless_asked_for() -> None:
    assert "logprobs" not in (await chat(make_app())).json["choices"][0]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "nope"}, 404, "model_not_found", "model"),
        ({"backend": "nope"}, 400, "backend_not_available", "backend"),
        ({"backend": "nope", "model": "nope"}, 400, "backend_not_available", "backend"),
        ({"model": None}, 422, "validation_error", "model"),
        ({"temperature": 3}, 422, "validation_error", "temperature"),
        ({"response_format": {"type": "json_object"}}, 400, "unsupported_parameter", "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "unsupported_parameter", "tools"),
        ({"model": "base"}, 400, "unsupported_parameter", "model"),
        ({"api_key": "x"}, 422, "validation_error", "api_key"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_its_status_and_reaches_no_backend(
    fields: dict[str, Any], status: int, code: str, param: str, stream: bool
) -> None:
    backend = ScriptedBackend()
    app = make_app(
        backend, cards=[card(), card("base", capabilities=["embeddings"])], max_concurrent_completions=1
    )

    reply = await chat(app, stream=stream, **fields)

    assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param)
    assert backend.requests == []


async def test_an_unknown_backend_is_refused_in_these_words() -> None:
    assert (await chat(make_app(), backend="vllm")).json["detail"] == "Backend 'vllm' is not available"


async def test_strict_turns_an_unknown_field_into_a_validation_error() -> None:
    reply = await call(
        make_app(), "POST", "/v1/chat/completions", {**HELLO, "wings": 2, "user": "u"}, query="strict=1"
    )

    assert (reply.status, reply.error["param"]) == (422, "wings")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextLengthExceeded(prompt_tokens=10, context_length=8), 400, "context_length_exceeded"),
        (BackendUnavailable("The runner is restarting"), 503, "backend_unavailable"),
        (BackendFailed("The engine failed"), 500, "backend_error"),
        (UpstreamAuthFailed("The provider refused our key"), 502, "upstream_auth"),
        (UnknownModel("tiny"), 404, "model_not_found"),
        (RuntimeError("secret path /etc"), 500, "backend_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_content_keeps_its_status(
    error: Exception, status: int, code: str, stream: bool
) -> None:
    reply = await chat(make_app(ScriptedBackend(script=[Started(0.0, 5), error])), stream=stream)

    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.headers["content-type"] == "application/json"
    assert b"secret" not in reply.body


async def test_half_an_answer_is_a_failure() -> None:
    script = [Started(0.0, 5), TextDelta(0, "x"), Finished(Usage(5, 1))]

    assert (await chat(make_app(ScriptedBackend(script=script)))).status == 500


async def test_an_answer_without_a_terminal_event_is_a_failure() -> None:
    script = [Started(0.0, 5), TextDelta(0, "x"), ChoiceFinished(0, "stop")]

    assert (await chat(make_app(ScriptedBackend(script=script)))).status == 500


@pytest.mark.parametrize(
    "script", [[Hang()], [Started(0.0, 5), Hang()], [Started(0.0, 5), TextDelta(0, "x"), Hang()]]
)
async def test_the_clients_leaving_closes_the_generator_and_frees_the_slot(script: list[Any]) -> None:
    backend = ScriptedBackend(script=script)
    app = make_app(backend)
    connection = Connection(app, "POST", "/v1/chat/completions", body=body())
    running = asyncio.create_task(connection.run())
    await backend.reached.wait()

    connection.leave()
    await asyncio.wait_for(running, 1)

    assert (backend.closed, backend.running) == (1, 0)
    assert app.state.gateway.admission.running == 0
    assert connection.reply.messages == []


async def test_a_queued_request_gives_its_place_back_when_the_client_leaves() -> None:
    backend = ScriptedBackend(script=[Hang()])
    app = make_app(backend, max_concurrent_completions=1, queue_size=1, queue_timeout_s=30)
    first = Connection(app, "POST", "/v1/chat/completions", body=body())
    second = Connection(app, "POST", "/v1/chat/completions", body=body())
    running = [asyncio.create_task(first.run())]
    await backend.reached.wait()
    running.append(asyncio.create_task(second.run()))
    admission = app.state.gateway.admission
    await turns()
    assert admission.waiting == 1

    second.leave()
    await asyncio.wait_for(running[1], 1)

    assert (admission.running, admission.waiting) == (1, 0)
    assert len(backend.requests) == 1
    first.leave()
    await running[0]


async def test_over_the_limit_is_refused_at_once_and_costs_no_slot() -> None:
    backend = ScriptedBackend(script=[Hang()])
    app = make_app(backend, max_concurrent_completions=1)
    first = Connection(app, "POST", "/v1/chat/completions", body=body())
    running = asyncio.create_task(first.run())
    await backend.reached.wait()

    reply = await chat(app, stream=True)

    assert (reply.status, reply.json["detail"]) == (503, "Concurrency limit exceeded")
    assert int(reply.headers["retry-after"]) >= 1
    first.leave()
    await running
    backend.script = words("x")
    assert (await chat(app)).status == 200


def test_a_request_over_its_deadline_is_a_timeout_and_is_aborted() -> None:
    backend = ScriptedBackend(script=[Started(0.0, 5), Pause(400)])

    reply: Reply = run_virtual(chat(make_app(backend, request_timeout_s=300)))

    assert (reply.status, reply.error["code"]) == (504, "timeout")
    assert reply.messages[0][0] == pytest.approx(1300)
    assert backend.closed == 1


def test_a_model_that_still_loads_after_the_longest_wait_is_not_ready() -> None:
    backend = ScriptedBackend(script=[Pause(200), *words("x")])
    backend.models = (backend.models[0].__class__(id="tiny", state="loading"),)

    reply = run_virtual(chat(make_app(backend, load_wait_s=60)))

    assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
    assert reply.messages[0][0] == pytest.approx(1060, abs=1)


def test_a_loaded_model_may_take_longer_than_a_load() -> None:
    backend = ScriptedBackend(script=[Pause(200), *words("x")])

    assert run_virtual(chat(make_app(backend, load_wait_s=60))).status == 200


async def test_a_cancelled_handler_closes_the_generator() -> None:
    backend = ScriptedBackend(script=[Hang()])
    app = make_app(backend)
    running = asyncio.create_task(chat(app))
    await backend.reached.wait()

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert backend.closed == 1
    assert app.state.gateway.admission.running == 0


async def test_vllm_is_told_not_to_think_unless_the_caller_says_so() -> None:
    backend = ScriptedBackend(kind="vllm")
    cards = [card(sources={"vllm": {"name": "tiny"}}, id="tiny")]
    app = make_app(cards=cards, backends={"vllm": backend}, default_backend="vllm")

    await chat(app, chat_template_kwargs={"depth": 2})
    await chat(app, chat_template_kwargs={"enable_thinking": True})

    assert kwargs_of(backend) == [{"enable_thinking": False, "depth": 2}, {"enable_thinking": True}]


async def test_an_effort_says_how_much_vllm_is_to_think() -> None:
    backend = ScriptedBackend(kind="vllm", features=frozenset({"reasoning_effort"}))
    cards = [card(sources={"vllm": {"name": "tiny"}}, id="tiny")]
    app = make_app(cards=cards, backends={"vllm": backend}, default_backend="vllm")

    await chat(app, reasoning_effort="low")
    await chat(app, reasoning_effort="none")

    assert kwargs_of(backend) == [{}, {"enable_thinking": False}]
    assert [request.reasoning_effort for request in backend.requests] == ["low", "none"]


def kwargs_of(backend: ScriptedBackend) -> list[dict[str, Any]]:
    asked = [request.prompts[0] for request in backend.requests]
    return [prompt.template_kwargs for prompt in asked if isinstance(prompt, ChatPrompt)]
