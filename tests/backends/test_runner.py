"""What travels between a runner and its client: requests, events, errors, and the end of either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from typing_extensions import override

from backends.base import Backend
from backends.errors import BackendFailed, BackendTimeout, ContextLengthExceeded, InvalidParameter
from backends.runner import RunnerClient, create_runner_app
from backends.runner.app import merge_text
from backends.tokenizing import DetokenizeRequest, TokenizeRequest
from backends.types import (
    BackendHealth,
    ChatPrompt,
    ChoiceFinished,
    Event,
    Finished,
    LoadProgress,
    Started,
    TextDelta,
    TextPrompt,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from tests.backends.contract import request, until
from tests.backends.scripted_runner import (
    ANSWER,
    Scripted,
    at_once,
    collect,
    flat,
    forever,
    stall_at,
    until_it_ends,
)
from tests.backends.serving import served, serving


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


@pytest.fixture
async def runner(backend: Scripted) -> AsyncIterator[RunnerClient]:
    async with served(backend) as runner:
        yield runner


# What travels


async def test_the_request_arrives_as_it_was_sent(backend: Scripted, runner: RunnerClient):
    prompt = ChatPrompt(messages=[{"role": "user", "content": "ä 🙂"}], tools=[{"a": [1, None, 2.5]}])
    sent = request(
        "m", prompt, stop=("x",), logit_bias={7: -1.5}, seed=-(2**63), explicit=frozenset({"seed"})
    )
    await collect(runner, sent)

    assert backend.received == [sent]


async def test_a_request_that_is_not_streamed_comes_in_one_batch(runner: RunnerClient):
    (batch,) = await collect(runner, request("m", stream=False))

    assert batch == [
        Started(0.0, 3),
        TextDelta(0, "one two", 2),
        ChoiceFinished(0, "stop"),
        Finished(Usage(3, 2)),
    ]


async def test_a_stream_brings_its_events_in_order(runner: RunnerClient):
    assert flat(await collect(runner, request("m", stream=True))) == flat(ANSWER)


async def test_an_event_is_delivered_while_the_next_one_is_awaited(backend: Scripted, runner: RunnerClient):
    backend.gate = stall_at(2)

    async with asyncio.timeout(10), aclosing(runner.generate(request("m", stream=True))) as batches:
        seen: list[Event] = []
        async for batch in batches:
            seen += batch
            if len(seen) == 2:
                break
    assert seen == [Started(0.0, 3), TextDelta(0, "one")]


async def test_a_slow_reader_gets_what_piled_up_in_one_batch(backend: Scripted, runner: RunnerClient):
    backend.batches = [[Started(0.0, 3)], *[[TextDelta(0, f"{i} ")] for i in range(200)], *ANSWER[-2:]]
    sizes = []
    async with asyncio.timeout(10), aclosing(runner.generate(request("m", stream=True))) as batches:
        async for batch in batches:
            sizes.append(len(batch))
            await asyncio.sleep(0.02)

    assert sum(sizes) == 203
    assert len(sizes) < 20


async def test_a_reader_that_stops_reading_stops_the_backend(backend: Scripted, runner: RunnerClient):
    """Back-pressure: neither end may pile up an answer that nobody takes."""
    produced = 0

    async def gate(i: int) -> None:
        nonlocal produced
        produced = i
        await asyncio.sleep(0)

    backend.gate = gate
    piece = TextDelta(0, "x" * 65536)
    backend.batches = [[Started(0.0, 3)], *[[piece]] * 1000, *ANSWER[-2:]]
    generator = runner.generate(request("m", stream=True))
    await anext(generator)
    last = -1
    while produced != last:
        last = produced
        await asyncio.sleep(0.1)

    assert produced < 100
    rest = flat([batch async for batch in generator])
    assert sum(isinstance(event, TextDelta) for event in rest) >= 900


async def test_connections_are_kept(backend: Scripted, runner: RunnerClient):
    for _ in range(5):
        await collect(runner, request("m"))
        await collect(runner, request("m", stream=True))
        await runner.count_tokens("m", TextPrompt(text="x"))

    assert len(runner._link._idle) == 1


async def test_load_progress_and_its_error_travel(backend: Scripted, runner: RunnerClient):
    assert [step async for step in runner.load("m")] == [
        LoadProgress("fetching", 1, 4),
        LoadProgress("ready", 4, 4),
    ]

    backend.load_error = ContextLengthExceeded(prompt_tokens=9, context_length=8)
    steps = runner.load("m")
    assert await anext(steps) == LoadProgress("fetching", 1, 4)
    with pytest.raises(ContextLengthExceeded) as raised:
        await anext(steps)
    assert raised.value.context_length == 8


async def test_counting_unloading_and_health_travel(backend: Scripted, runner: RunnerClient):
    assert await runner.count_tokens("m", TextPrompt(text="x")) == 7
    await runner.unload("m")
    assert backend.ended == ["unloaded m"]
    assert await runner.health() == await backend.health()


async def test_tokens_and_their_text_travel(backend: Scripted, runner: RunnerClient):
    for model, with_strings in (("m", True), ("guess", False)):
        asked = TokenizeRequest(model=model, prompt=TextPrompt(text="x"), with_strings=with_strings)
        assert await runner.tokenize(asked) == await backend.tokenize(asked)
    back = DetokenizeRequest(model="m", token_ids=(4, 5))
    assert await runner.detokenize(back) == "m [4, 5] ä"
    with pytest.raises(InvalidParameter, match="bad"):
        await runner.tokenize(TokenizeRequest(model="m", prompt=TextPrompt(text="bad")))


async def test_the_lifespan_starts_and_closes_the_backend(backend: Scripted):
    async with served(backend):
        assert backend.phase == "started"
        assert not backend.closed
    assert backend.closed


# Ending early


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", [0, 2])
async def test_closing_the_generator_ends_the_backends_work(
    backend: Scripted, runner: RunnerClient, step: int, stream: bool
):
    """Before the first event and between events, streamed or not."""
    backend.gate = stall_at(step)
    task = asyncio.create_task(collect(runner, request("m", stream=stream)))
    await until(lambda: at_once(bool(backend.received)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until(lambda: at_once(backend.ended == ["cut"]), patience_s=1)


async def test_an_abort_before_the_first_event_ends_the_generator(backend: Scripted, runner: RunnerClient):
    backend.gate = forever
    wanted = request("m", stream=True)
    task = asyncio.create_task(collect(runner, wanted))
    await until(lambda: at_once(bool(backend.received)))
    await runner.abort(wanted.request_id)

    with pytest.raises(BackendFailed, match="aborted"):
        await task
    await until(lambda: at_once(backend.ended == ["cut"]), patience_s=2)


async def test_an_answer_that_was_read_whole_is_not_cut(backend: Scripted, runner: RunnerClient):
    """Not even what the backend does after its last event, when the connection is free again."""
    backend.linger_s = 0.05
    for stream in (False, True):
        await collect(runner, request("m", stream=stream))

    await until(lambda: at_once(len(backend.ended) == 2))
    assert backend.ended == ["whole", "whole"]


@asynccontextmanager
async def behind_a_backstop(backend: Backend, limit_s: float) -> AsyncIterator[RunnerClient]:
    async with serving(create_runner_app(backend, token=None, backstop_s=limit_s)) as url:
        runner = RunnerClient(backend.kind, url)
        await runner.start()
        yield runner
        await runner.aclose()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", [0, 2])
async def test_a_request_that_never_ends_is_ended(backend: Scripted, step: int, stream: bool):
    """With an error that the other end can read, whether the head has gone out or not."""
    backend.gate = stall_at(step)

    async with behind_a_backstop(backend, 0.3) as runner:
        with pytest.raises(BackendTimeout, match=r"longer than 0\.3 s"):
            await collect(runner, request("m", stream=stream))

    assert backend.ended == ["cut"]


async def test_a_load_takes_as_long_as_it_takes():
    class Slow(Scripted):
        @override
        async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
            await asyncio.sleep(0.1)
            yield LoadProgress("ready", 4, 4)

    async with behind_a_backstop(Slow(), 0.02) as runner:
        assert [step async for step in runner.load("m")] == [LoadProgress("ready", 4, 4)]


async def test_requests_that_ended_leave_no_timers(backend: Scripted):
    async with behind_a_backstop(backend, 600) as runner:
        for stream in (False, True) * 50:
            await collect(runner, request("m", stream=stream))
        loop: Any = asyncio.get_running_loop()
        late = [one for one in loop._scheduled if one.when() > loop.time() + 300 and not one.cancelled()]

    assert len(late) == 1


# What goes wrong behind the wire


async def test_an_error_before_any_event_is_raised_as_itself(backend: Scripted, runner: RunnerClient):
    backend.batches, backend.error = [], ContextLengthExceeded(prompt_tokens=9, context_length=8)

    with pytest.raises(ContextLengthExceeded, match="9 tokens"):
        await collect(runner, request("m", stream=True))


async def test_an_error_in_the_middle_comes_after_the_events_before_it(
    backend: Scripted, runner: RunnerClient
):
    backend.batches, backend.error = ANSWER[:2], BackendFailed("The engine stopped")
    seen, error = await until_it_ends(runner)

    assert seen == flat(ANSWER[:2])
    assert isinstance(error, BackendFailed)
    assert error.message == "The engine stopped"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_in_the_backend_is_a_failure_without_its_text(
    backend: Scripted, runner: RunnerClient, stream: bool, caplog: pytest.LogCaptureFixture
):
    backend.batches, backend.error = ANSWER[:2], RuntimeError("secret")

    with pytest.raises(BackendFailed) as raised:
        await collect(runner, request("m", stream=stream))
    assert "secret" not in str(raised.value)
    assert "secret" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_that_ends_without_finished_is_a_failure(
    backend: Scripted, runner: RunnerClient, stream: bool
):
    backend.batches = ANSWER[:3]

    with pytest.raises(BackendFailed, match="without finishing"):
        await collect(runner, request("m", stream=stream))


async def test_a_value_that_msgpack_cannot_hold_is_the_callers_fault(runner: RunnerClient):
    for message in ({"content": 2**70}, {"content": "\ud800"}):
        with pytest.raises(InvalidParameter):
            await collect(runner, request("m", ChatPrompt(messages=[message])))


# Addresses


@pytest.mark.parametrize("url", ["ftp://x", "localhost:1234", "file://", "http://"])
def test_an_address_of_another_form_is_refused_at_once(url: str):
    with pytest.raises(ValueError, match="no such address"):
        RunnerClient("scripted", url)


async def test_the_address_may_be_known_later(backend: Scripted):
    known: list[str] = []
    runner = RunnerClient("scripted", lambda: known[0] if known else "")
    await runner.start()
    early = await runner.health()
    async with serving(create_runner_app(backend, token=None)) as url:
        known.append(url)
        late = await runner.health()
        await runner.aclose()

    assert early == BackendHealth(
        healthy=False, message="The runner cannot be reached: its address is not known yet"
    )
    assert late.healthy


def test_a_token_that_would_split_the_header_is_refused():
    with pytest.raises(ValueError, match="token"):
        RunnerClient("scripted", "file:///x", "a\r\nx-evil: 1")


# Merging


def test_merging_joins_each_choices_text_and_logprobs_and_keeps_the_count():
    def lp(text: str) -> TokenLogprobs:
        return TokenLogprobs(TokenLogprob(text.encode(), -1.0))

    merged = merge_text(
        [
            Started(0.0, 3),
            TextDelta(0, "a", 1, (lp("a"),)),
            TextDelta(1, "x", 1),
            TextDelta(0, "b", 2, (lp("b"), lp(""))),
            ChoiceFinished(0, "stop"),
            TextDelta(1, "y", 1),
            ChoiceFinished(1, "length"),
            Finished(Usage(3, 5)),
        ]
    )

    assert merged == [
        Started(0.0, 3),
        TextDelta(0, "ab", 3, (lp("a"), lp("b"), lp(""))),
        ChoiceFinished(0, "stop"),
        TextDelta(1, "xy", 2),
        ChoiceFinished(1, "length"),
        Finished(Usage(3, 5)),
    ]
