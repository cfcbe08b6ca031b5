"""What happens to a request whose model cannot serve it: the next one of its card, or its own error."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from backends import errors as be
from backends.types import ModelStatus, Started, TextDelta
from models import errors as me
from models.card import ModelCard
from openai_compat.serving.fallback import reason_of
from tests.openai_compat.scripted_backend import Hang, Pause, ScriptedBackend, words
from tests.openai_compat.test_chat import turns
from tests.openai_compat.test_errors import tree
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import HELLO, Connection, Reply, call, chat, make_app

DOWN = be.BackendUnavailable("The runner is dead")
FULL = be.Overloaded("All slots are busy", retry_after_s=7)
SMALL = be.ContextLengthExceeded(prompt_tokens=3000, context_length=2048)
ERRORS = {"unavailable": DOWN, "overloaded": FULL, "context_length": SMALL}


def card(id: str, kind: str = "vllm", **fields: Any) -> ModelCard:
    source = {"path": f"{id}.gguf"} if kind == "llamacpp" else {"name": id}
    return ModelCard.model_validate({"id": id, "sources": {kind: source}, **fields})


class House:
    """An app with a model `tiny` on one backend, and its fallbacks on others."""

    def __init__(self, script: Any, *spares: Any, when: Any = None, cards: Any = None, **config: Any) -> None:
        kinds = ("vllm", "litellm", "llamacpp")
        self.first = ScriptedBackend(script=script)
        self.spares = [
            ScriptedBackend(script=spare, kind=kind) for spare, kind in zip(spares, kinds, strict=False)
        ]
        main = ModelCard.model_validate(
            {
                "id": "tiny",
                "sources": {"fake": {"name": "tiny"}},
                "fallbacks": [f"spare{number}" for number in range(len(spares))],
                **({"when": when} if when else {}),
            }
        )
        others = [card(f"spare{number}", kind) for number, kind in enumerate(kinds[: len(spares)])]
        self.app = make_app(
            backends={"fake": self.first, **{backend.kind: backend for backend in self.spares}},
            cards=cards or [main, *others],
            **config,
        )

    def counted(self) -> dict[str, float]:
        text = self.app.state.gateway.metrics.render().decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


@pytest.mark.parametrize("reason", sorted(ERRORS))
@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_model_answers_and_the_answer_says_so(reason: str, stream: bool) -> None:
    house = House([ERRORS[reason]], words("Hi"))

    reply = await chat(house.app, stream=stream)

    assert reply.status == 200
    assert reply.headers["x-llm-fallback-reason"] == reason
    assert reply.headers["x-llm-backend"] == "vllm"
    if stream:
        assert {chunk["model"] for chunk in reply.chunks} == {"spare0"}
        assert reply.text() == "Hi"
    else:
        assert (reply.json["model"], reply.json["backend"]) == ("spare0", "vllm")
    assert house.spares[0].requests[0].model == "spare0"


async def test_an_answer_of_the_named_model_says_nothing_of_fallbacks() -> None:
    assert "x-llm-fallback-reason" not in (await chat(House(words("Hi"), words("Ho")).app)).headers


@pytest.mark.parametrize("reason", sorted(ERRORS))
async def test_a_reason_that_the_card_leaves_out_is_none(reason: str) -> None:
    house = House([ERRORS[reason]], words("Hi"), when=[other for other in ERRORS if other != reason])

    assert (await chat(house.app)).status == {"context_length": 400}.get(reason, 503)
    assert house.spares[0].requests == []


@pytest.mark.parametrize(
    "error",
    [
        be.UnsupportedParameter("No", param="seed"),
        be.TemplateRefused("No"),
        be.NotSupported("No"),
        be.InvalidGrammar("No"),
        RuntimeError("a bug"),
    ],
)
async def test_what_another_model_would_not_help_is_the_answer(error: Exception) -> None:
    house = House([error], words("Hi"))

    assert (await chat(house.app)).status in (400, 500, 501)
    assert house.spares[0].requests == []


async def test_fallbacks_are_tried_once_each_and_in_order() -> None:
    house = House([DOWN], [FULL], [be.UpstreamError("Nonsense")], words("Hi"))

    reply = await chat(house.app)

    assert reply.json["model"] == "spare2"
    assert reply.headers["x-llm-fallback-reason"] == "unavailable"
    assert [len(backend.requests) for backend in (house.first, *house.spares)] == [1, 1, 1, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_when_all_fail_the_first_error_is_the_answer(stream: bool) -> None:
    house = House([FULL], [DOWN], [be.UpstreamError("Nonsense")])

    reply = await chat(house.app, stream=stream)

    assert reply.status == 503
    assert reply.error["message"] == "All slots are busy"
    assert reply.headers["retry-after"] == "7"
    assert house.counted()['llm:requests_failed_total{backend="fake",model="tiny"}'] == 1


async def test_when_all_fail_the_log_names_the_model_that_was_asked_for() -> None:
    house = House([FULL], [DOWN])
    connection = Connection(house.app, "POST", "/v1/chat/completions", body=json.dumps(HELLO).encode())

    await connection.run()

    record = connection.record
    assert (record.model, record.backend, record.fallback) == ("tiny", "fake", "overloaded")
    assert record.error_code == "concurrency_limit"


async def test_a_fallback_that_cannot_take_the_request_does_not_end_the_search() -> None:
    house = House([DOWN], [be.UnsupportedParameter("No", param="seed")], words("Hi"))

    assert (await chat(house.app)).json["model"] == "spare1"


async def test_a_bug_on_a_fallback_is_logged_and_the_search_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    house = House([DOWN], [RuntimeError("a bug")], words("Hi"))

    assert (await chat(house.app)).json["model"] == "spare1"
    assert "a bug" in caplog.text


async def test_a_named_backend_is_kept() -> None:
    house = House([DOWN], words("Hi"))

    assert (await chat(house.app, backend="fake")).status == 503
    assert house.spares[0].requests == []


@pytest.mark.parametrize("fields", [{"logit_bias": {"5": 1}}, {"stop_token_ids": [5]}])
async def test_token_ids_keep_a_request_with_its_model(fields: dict[str, Any]) -> None:
    house = House([DOWN], words("Hi"))

    assert (await chat(house.app, **fields)).status == 503


async def test_a_prompt_of_token_ids_stays_with_its_model_and_one_of_text_does_not() -> None:
    house = House([DOWN], words("Hi"))

    def complete(prompt: Any) -> Any:
        return call(house.app, "POST", "/v1/completions", {"model": "tiny", "prompt": prompt})

    assert (await complete([1, 2])).status == 503
    assert (await complete("Say")).json["model"] == "spare0"


async def test_the_callers_own_list_of_fallbacks_is_refused() -> None:
    assert (await chat(House(words("Hi"), words("Ho")).app, fallbacks=["x"])).status == 422


async def test_the_fallbacks_own_card_decides_on_its_sampling() -> None:
    house = House(
        [DOWN],
        words("Hi"),
        cards=[
            card("tiny", "fake", fallbacks=["spare0"], sampling={"temperature": 0.1, "top_k": 3}),
            card("spare0", sampling={"temperature": 0.9}),
        ],
    )

    await chat(house.app, top_p=0.5)

    sampling = house.spares[0].requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.9, 0, 0.5)
    assert house.first.requests[0].sampling.temperature == 0.1


async def test_a_fallback_without_the_features_of_the_request_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House([DOWN], words("Hi"), words("Ho"))
    house.first.features = house.spares[1].features = frozenset({"structured_outputs"})

    with caplog.at_level(logging.INFO):
        reply = await chat(house.app, response_format={"type": "json_object"})

    assert reply.json["model"] == "spare1"
    assert house.spares[0].requests == []
    assert "'spare0' of 'tiny' is passed over" in caplog.text


@pytest.mark.parametrize("spare", [[], [card("spare0", capabilities=["embeddings"])]])
async def test_a_fallback_that_is_not_there_or_does_not_chat_is_passed_over(spare: list[ModelCard]) -> None:
    house = House(
        [DOWN],
        words("Hi"),
        words("Ho"),
        cards=[card("tiny", "fake", fallbacks=["spare0", "spare1"]), *spare, card("spare1", "litellm")],
    )

    assert (await chat(house.app)).json["model"] == "spare1"


async def test_fallbacks_of_fallbacks_and_a_model_under_two_names_are_not_followed() -> None:
    house = House(
        [DOWN],
        [FULL],
        words("Ho"),
        cards=[
            card("tiny", "fake", fallbacks=["spare0", "again"]),
            card("spare0", aliases=["again"], fallbacks=["other"]),
            card("other", "litellm"),
        ],
    )

    assert (await chat(house.app)).error["message"] == "The runner is dead"
    assert len(house.spares[0].requests) == 1
    assert house.spares[1].requests == []


async def test_what_a_failed_attempt_had_begun_is_not_in_the_answer() -> None:
    house = House([Started(0, 5), TextDelta(0, "Half"), DOWN], words("Whole"))

    reply = await chat(house.app)

    assert reply.json["choices"][0]["message"]["content"] == "Whole"
    assert house.first.running == 0
    assert house.first.closed == 1


async def test_an_answer_that_ends_too_early_counts_as_a_failure() -> None:
    house = House([Started(0, 5), TextDelta(0, "Half")], words("Whole"))

    assert (await chat(house.app)).json["model"] == "spare0"


async def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    house = House([Started(0, 5), TextDelta(0, "Half"), DOWN], words("Whole"))

    reply = await chat(house.app, stream=True)

    assert json.loads(reply.frames[-2])["error"]["message"] == "The runner is dead"
    assert house.spares[0].requests == []


def test_a_stream_whose_headers_are_out_is_not_begun_again() -> None:
    house = House([Started(0, 5), Pause(6.0), DOWN], words("Whole"))

    reply = run_virtual(chat(house.app, stream=True))

    assert reply.headers["x-llm-backend"] == "fake"
    assert json.loads(reply.frames[0])["error"]["message"] == "The runner is dead"
    assert house.spares[0].requests == []


def test_headers_that_go_out_during_the_second_attempt_name_its_backend() -> None:
    house = House([DOWN], [Started(0, 5), Pause(6.0), *words("Hi")[1:]])

    reply = run_virtual(chat(house.app, stream=True))

    assert reply.headers["x-llm-backend"] == "vllm"
    assert reply.headers["x-llm-fallback-reason"] == "unavailable"
    assert reply.text() == "Hi"


def test_headers_that_go_out_during_the_second_attempt_end_the_search() -> None:
    house = House([DOWN], [Started(0, 5), Pause(6.0), FULL], words("Hi"))

    reply = run_virtual(chat(house.app, stream=True))

    assert json.loads(reply.frames[0])["error"]["message"] == "All slots are busy"
    assert house.spares[1].requests == []


def test_headers_that_go_out_while_the_next_model_is_looked_for_end_the_search() -> None:
    house = House(
        [Started(0, 5), Pause(4.0), DOWN],
        [],
        words("Hi"),
        cards=[
            card("tiny", "fake", fallbacks=["cloudy"]),
            card("cloudy", "litellm", price={"prompt": 1, "completion": 1}),
        ],
        budgets={"*": 1.0},
    )

    async def check_slowly(_: object) -> None:
        await asyncio.sleep(3.0)

    house.app.state.gateway.budgets.check = check_slowly
    reply = run_virtual(chat(house.app, stream=True))

    assert reply.headers["x-llm-backend"] == "fake"
    assert json.loads(reply.frames[0])["error"]["message"] == "The runner is dead"
    assert house.spares[1].requests == []


def test_a_first_token_that_is_late_is_a_reason() -> None:
    house = House([Started(0, 5), Hang()], words("Hi"), first_token_timeout_s=2.0)

    reply = run_virtual(chat(house.app, stream=True))

    assert reply.text() == "Hi"
    assert reply.headers["x-llm-fallback-reason"] == "unavailable"
    assert house.first.running == 0


def test_each_attempt_has_its_own_time_to_the_first_token_within_the_requests_time() -> None:
    slow = [Started(0, 5), Hang()]
    house = House(slow, slow, slow, words("Hi"), first_token_timeout_s=1.0)

    async def timed() -> tuple[Reply, float]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        return await chat(house.app, stream=True), loop.time() - begun

    reply, took_s = run_virtual(timed())

    assert reply.text() == "Hi"
    assert took_s == pytest.approx(3.0, abs=0.2)


def test_a_model_that_still_loads_is_a_reason() -> None:
    house = House([Hang()], words("Hi"), load_wait_s=1.0)
    house.first.models = (ModelStatus(id="tiny", state="loading"),)

    reply = run_virtual(chat(house.app))

    assert reply.json["model"] == "spare0"
    assert house.first.running == 0


def test_the_requests_time_runs_over_all_attempts() -> None:
    house = House([Pause(3.0), DOWN], [Started(0, 5), Hang()], request_timeout_s=5.0)

    async def timed() -> tuple[Reply, float]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        return await chat(house.app), loop.time() - begun

    reply, took_s = run_virtual(timed())

    assert reply.status == 504
    assert took_s == pytest.approx(5.0, abs=0.2)
    assert house.spares[0].running == 0


async def test_one_request_holds_one_slot_over_all_attempts() -> None:
    house = House([DOWN], [Started(0, 5), Hang()], max_concurrent_completions=1)
    connection = Connection(house.app, "POST", "/v1/chat/completions", body=json.dumps(HELLO).encode())
    running = asyncio.create_task(connection.run())
    await house.spares[0].reached.wait()

    assert (await chat(house.app)).error["code"] == "concurrency_limit"
    assert house.counted()["llm:num_requests_running"] == 1

    connection.leave()
    await running
    assert house.counted()["llm:num_requests_running"] == 0


async def test_our_own_concurrency_limit_is_no_reason() -> None:
    house = House([Started(0, 5), Hang()], words("Hi"), max_concurrent_completions=1)
    connection = Connection(house.app, "POST", "/v1/chat/completions", body=json.dumps(HELLO).encode())
    running = asyncio.create_task(connection.run())
    await house.first.reached.wait()

    assert (await chat(house.app)).status == 503
    assert house.spares[0].requests == []

    connection.leave()
    await running


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_attempt_in_hand_and_begins_no_other(stream: bool) -> None:
    house = House([DOWN], [Started(0, 5), Hang()], words("Hi"))
    body = json.dumps({**HELLO, "stream": stream}).encode()
    connection = Connection(house.app, "POST", "/v1/chat/completions", body=body)
    running = asyncio.create_task(connection.run())
    await house.spares[0].reached.wait()

    connection.leave()
    await running
    await turns()

    assert house.spares[0].running == 0
    assert house.spares[1].requests == []
    assert connection.record.cancelled_phase == "prefill"


async def test_a_client_that_leaves_while_an_attempt_winds_down_gets_no_other() -> None:
    class Slow(ScriptedBackend):
        """Takes its time to stop."""

        stopping = asyncio.Event()

        async def generate(self, request: Any) -> Any:
            self.requests.append(request)
            self.reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopping.set()
                await asyncio.sleep(0.05)
            yield []

    house = House([DOWN], words("Hi"), first_token_timeout_s=0.02)
    slow = Slow()
    house.app.state.gateway.backends["fake"] = slow
    body = json.dumps({**HELLO, "stream": True}).encode()
    connection = Connection(house.app, "POST", "/v1/chat/completions", body=body)
    running = asyncio.create_task(connection.run())
    async with asyncio.timeout(5):
        await slow.stopping.wait()

    connection.leave()
    await running

    assert house.spares[0].requests == []


async def test_metrics_and_log_tell_where_a_request_went() -> None:
    house = House([DOWN], words("Hi"))
    connection = Connection(house.app, "POST", "/v1/chat/completions", body=json.dumps(HELLO).encode())

    await connection.run()

    counted = house.counted()
    assert counted['llm:fallbacks_total{backend="fake",model="tiny",reason="unavailable"}'] == 1
    served = 'llm:request_success_total{backend="vllm",finished_reason="stop",model="spare0"}'
    assert counted[served] == 1
    assert 'llm:requests_failed_total{backend="fake",model="tiny"}' not in counted or (
        counted['llm:requests_failed_total{backend="fake",model="tiny"}'] == 0
    )
    assert (connection.record.model, connection.record.fallback) == ("spare0", "unavailable")


async def test_a_search_that_finds_nobody_is_no_fallback() -> None:
    house = House([DOWN], words("Hi"), cards=[card("tiny", "fake", fallbacks=["gone"])])
    connection = Connection(house.app, "POST", "/v1/chat/completions", body=json.dumps(HELLO).encode())

    reply = await connection.run()

    assert reply.error["message"] == "The runner is dead"
    assert connection.record.fallback is None
    assert not any("fallbacks_total" in name for name in house.counted())


def test_every_error_of_a_backend_says_whether_another_model_helps() -> None:
    concrete = (tree(be.BackendError) | tree(me.ModelError)) - {be.BackendError, me.ModelError}

    assert {error for error in concrete if reason_of(error.__new__(error)) is None} == set()
    assert reason_of(be.UpstreamAuthFailed("")) == "unavailable"
    assert reason_of(be.UpstreamRateLimited("")) == "overloaded"
    assert reason_of(ValueError()) is None
