"""Several runners behind one name."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest
from typing_extensions import override

from backends.base import Backend
from backends.errors import BackendFailed, BackendUnavailable, Draining, InvalidParameter, ServiceError
from backends.runner.replicas import RESOLVE_S, REST_S, RunnerReplicas
from backends.types import (
    BackendHealth,
    EventBatch,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
    SamplingParams,
    TextDelta,
    TextPrompt,
)
from tests.backends.clocks import FakeClock


class Runner(Backend):
    """Says its own address. `refuse`: raised before the first event; `break_off`: after it."""

    kind = "llamacpp"

    def __init__(self, url: str) -> None:
        self.url = url
        self.refuse: ServiceError | None = None
        self.break_off: ServiceError | None = None
        self.hold: asyncio.Event | None = None
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.aborted: list[str] = []
        self.report = BackendHealth(healthy=True)
        self.is_closed = False

    @override
    async def start(self) -> None: ...

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        if self.refuse is not None:
            raise self.refuse
        yield [TextDelta(index=0, text=self.url)]
        if self.break_off is not None:
            raise self.break_off
        if self.hold is not None:
            await self.hold.wait()

    @override
    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        if self.refuse is not None:
            raise self.refuse
        return 7

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        yield LoadProgress("loading", 1, 2)
        if self.refuse is not None:
            raise self.refuse
        self.loads.append(model)
        yield LoadProgress("ready")

    @override
    async def unload(self, model: str) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.unloads.append(model)

    @override
    async def health(self) -> BackendHealth:
        return self.report

    @override
    async def metrics(self) -> bytes:
        return b'# TYPE up gauge\nup 1\nbusy{model="a b"} 2\nidle{} 3\n' if self.report.healthy else b""

    @override
    async def aclose(self) -> None:
        self.is_closed = True


class Place:
    """The name, the runners behind it and the time."""

    def __init__(self, *names: str) -> None:
        self.names: Sequence[str] = names
        self.unresolvable = False
        self.runners: dict[str, Runner] = {}
        self.clock = FakeClock()
        self.backend = RunnerReplicas(
            "llamacpp", "http://runners:14011", self._connect, resolve=self._resolve, clock=self.clock
        )

    def _connect(self, url: str) -> Backend:
        return self.runners.setdefault(url, Runner(url))

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("runners", 14011)
        if self.unresolvable:
            raise OSError("Name or service not known")
        return self.names

    async def known(self) -> list[Runner]:
        await self.backend.health()
        return list(self.runners.values())

    async def later(self) -> None:
        """Long enough for the name to be looked at again."""
        await self.clock.advance(RESOLVE_S)
        await self.backend.health()
        await self.clock.advance(0)


def request(request_id: str = "r") -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        model="m",
        prompts=(TextPrompt(text="x"),),
        sampling=SamplingParams(),
    )


async def said(backend: Backend) -> str:
    async with aclosing(backend.generate(request())) as events:
        return "".join([e.text async for batch in events for e in batch if isinstance(e, TextDelta)])


async def phases(backend: Backend) -> list[str]:
    async with aclosing(backend.load("m")) as steps:
        return [progress.phase async for progress in steps]


async def test_requests_in_a_row_are_shared_evenly() -> None:
    place = Place("10.0.0.1", "10.0.0.2")

    counts = Counter([await said(place.backend) for _ in range(200)])

    assert counts == {"http://10.0.0.1:14011": 100, "http://10.0.0.2:14011": 100}


async def test_a_busy_runner_is_passed_over() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    runners = await place.known()
    for runner in runners:
        runner.hold = asyncio.Event()
    held = place.backend.generate(request())
    busy = (await anext(held))[0]
    for runner in runners:
        if runner.hold is not None:
            runner.hold.set()

    others = {await said(place.backend) for _ in range(4)}

    assert isinstance(busy, TextDelta)
    assert others == {runner.url for runner in runners} - {busy.text}
    await held.aclose()


@pytest.mark.parametrize(
    "error", [BackendUnavailable("Connection refused"), Draining("This process is shutting down")]
)
async def test_a_request_that_was_not_begun_goes_to_another(error: ServiceError) -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    first, second = await place.known()
    first.refuse = error

    assert [await said(place.backend) for _ in range(4)] == [second.url] * 4


async def test_a_stream_that_has_begun_ends_where_it_is() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    for runner in await place.known():
        runner.break_off = BackendFailed("The runner died while it generated")

    with pytest.raises(BackendFailed):
        await said(place.backend)


async def test_what_is_wrong_with_the_request_is_wrong_everywhere() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    asked = await place.known()
    for runner in asked:
        runner.refuse = InvalidParameter("no")
    asked[0].refuse, asked[1].refuse = InvalidParameter("first"), InvalidParameter("second")

    with pytest.raises(InvalidParameter):
        await said(place.backend)


async def test_when_nobody_takes_it_the_last_reason_is_told() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    for runner in await place.known():
        runner.refuse = BackendUnavailable("Connection refused", retry_after_s=2)

    with pytest.raises(BackendUnavailable, match="Connection refused"):
        await said(place.backend)


async def test_a_runner_that_could_not_take_a_request_rests_and_then_gets_some_again() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    first, second = await place.known()
    first.refuse = BackendUnavailable("Connection refused")
    while await said(place.backend) and place.backend._replicas["10.0.0.1"].rests_until == 0:
        pass
    first.refuse = None

    resting = {await said(place.backend) for _ in range(4)}
    await place.clock.advance(REST_S)

    assert resting == {second.url}
    assert {await said(place.backend) for _ in range(4)} == {first.url, second.url}


async def test_a_runner_that_is_added_gets_requests() -> None:
    place = Place("10.0.0.1")
    await said(place.backend)
    place.names = ("10.0.0.1", "10.0.0.2")
    await place.later()

    assert {await said(place.backend) for _ in range(4)} == {"http://10.0.0.1:14011", "http://10.0.0.2:14011"}


async def test_a_runner_that_is_taken_away_finishes_what_it_runs() -> None:
    place = Place("10.0.0.1")
    (runner,) = await place.known()
    runner.hold = asyncio.Event()
    held = place.backend.generate(request())
    await anext(held)
    place.names = ("10.0.0.2",)
    await place.later()
    while_running = runner.is_closed
    runner.hold.set()
    await held.aclose()
    await place.clock.advance(REST_S)

    assert not while_running
    assert runner.is_closed
    assert await said(place.backend) == "http://10.0.0.2:14011"


async def test_a_name_that_cannot_be_resolved_for_a_while_keeps_its_runners() -> None:
    place = Place("10.0.0.1")
    await said(place.backend)
    place.unresolvable = True
    await place.later()

    assert await said(place.backend) == "http://10.0.0.1:14011"


async def test_a_resolver_that_does_not_answer_is_said_to_give_none(caplog: pytest.LogCaptureFixture) -> None:
    async def silent(_host: str, _port: int) -> list[str]:
        raise TimeoutError

    backend = RunnerReplicas("llamacpp", "http://runners:14011", Runner, resolve=silent)
    with pytest.raises(BackendUnavailable):
        await said(backend)

    assert caplog.messages == ["runners cannot be resolved: no answer"]


async def test_without_any_runner_it_is_unavailable_and_says_when_to_come_again() -> None:
    place = Place()

    with pytest.raises(BackendUnavailable) as caught:
        await said(place.backend)

    assert caught.value.retry_after_s == 2.0
    assert not (await place.backend.health()).healthy


async def test_loads_and_unloads_reach_every_runner() -> None:
    place = Place("10.0.0.1", "10.0.0.2", "10.0.0.3")

    seen = await phases(place.backend)
    await place.backend.unload("m")

    assert seen[-1] == "ready"
    assert seen.count("ready") == 1
    assert all(runner.loads == runner.unloads == ["m"] for runner in place.runners.values())


async def test_a_load_that_fails_on_one_runner_fails_after_the_others_have_loaded() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    first, second = await place.known()
    second.refuse = BackendUnavailable("Connection refused")

    with pytest.raises(BackendUnavailable):
        await phases(place.backend)

    assert first.loads == ["m"]


async def test_an_abort_reaches_every_runner() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    runners = await place.known()

    await place.backend.abort("r")

    assert [runner.aborted for runner in runners] == [["r"], ["r"]]


async def test_it_is_healthy_while_one_is_and_says_how_many_are() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    first, _ = await place.known()
    first.report = BackendHealth(healthy=False, message="Connection refused")

    health = await place.backend.health()

    assert health.healthy
    assert health.message == "1 of 2 runners are healthy (Connection refused)"


async def test_a_model_counts_as_loaded_where_every_runner_has_it() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    first, second = await place.known()
    first.report = BackendHealth(healthy=True, models=(ModelStatus(id="m", state="loaded", running=2),))
    second.report = BackendHealth(healthy=True, models=(ModelStatus(id="m", state="loading", running=1),))

    (status,) = (await place.backend.health()).models

    assert (status.state, status.running) == ("loading", 3)


async def test_the_metrics_of_every_runner_name_it() -> None:
    place = Place("10.0.0.1", "[::1]")
    await place.known()

    text = await place.backend.metrics()

    assert text.count(b"# TYPE up gauge") == 2
    for name in (b"10.0.0.1", b"[::1]"):
        assert b'up{runner="%b"} 1\n' % name in text
        assert b'busy{runner="%b",model="a b"} 2\n' % name in text
        assert b'idle{runner="%b"} 3\n' % name in text


async def test_one_runner_is_named_too_and_a_silent_one_left_out() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    first, _ = await place.known()
    first.report = BackendHealth(healthy=False)

    text = await place.backend.metrics()

    assert b"10.0.0.1" not in text
    assert b'up{runner="10.0.0.2"} 1\n' in text


async def test_a_single_call_goes_elsewhere_too() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    first, _ = await place.known()
    first.refuse = BackendUnavailable("Connection refused")

    counts = [await place.backend.count_tokens("m", TextPrompt(text="x")) for _ in range(4)]

    assert counts == [7] * 4


async def test_closing_closes_every_runner_and_refuses_what_comes_after() -> None:
    place = Place("10.0.0.1", "10.0.0.2")
    runners = await place.known()

    await place.backend.aclose()

    assert all(runner.is_closed for runner in runners)
    with pytest.raises(BackendUnavailable):
        await said(place.backend)
