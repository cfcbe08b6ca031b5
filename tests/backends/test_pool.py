"""The pool: who loads, who waits, who is evicted, what fails and what stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from backends.errors import (
    BackendFailed,
    BackendUnavailable,
    Conflict,
    Draining,
    InsufficientMemory,
    ModelNotReady,
)
from backends.loader import LoadedModel, ModelLoader
from backends.pool import STEADY_S, Limits, PooledBackend
from backends.types import (
    ChoiceFinished,
    EventBatch,
    Finished,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
    Started,
    TextDelta,
    TextPrompt,
    Usage,
)
from models.card import ModelCard, RemoteSource
from models.errors import UnknownModel, UnusableModel
from tests.backends.clocks import FakeClock, settle
from tests.backends.contract import request

GIB = 1 << 30


class StubModel(LoadedModel):
    """Answers one token per opened gate; without a gate, at once."""

    def __init__(self, card_id: str, size: int) -> None:
        self.card_id = card_id
        self.context_length = 100
        self.memory_bytes = size
        self.gate: asyncio.Event | None = None
        self.aborted: list[str] = []
        self.closed = False
        self.dead: str | None = None
        self.ring: Callable[[], None] | None = None
        self.text = b""
        self.close_gate: asyncio.Event | None = None
        self.close_error: Exception | None = None
        self._running = 0

    @property
    @override
    def running(self) -> int:
        return self._running

    @property
    @override
    def waiting(self) -> int:
        return 0

    @property
    @override
    def failure(self) -> str | None:
        return self.dead

    @override
    def watch(self, on_failure: Callable[[], None]) -> None:
        self.ring = on_failure

    def die(self, why: str = "The engine's process ended") -> None:
        """By itself, with nobody asking."""
        self.dead = why
        assert self.ring is not None
        self.ring()

    @override
    async def metrics(self) -> bytes:
        return self.text

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        assert not self.closed, "a request reached a model that was closed"
        self._running += 1
        try:
            yield [Started(1.0, 3)]
            if self.gate is not None:
                await self.gate.wait()
            if self.closed:
                raise BackendFailed("The model was unloaded")
            yield [TextDelta(0, "x"), ChoiceFinished(0, "stop"), Finished(Usage(3, 1), queue_ms=1.0)]
        finally:
            self._running -= 1

    @override
    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return 3

    @override
    async def aclose(self) -> None:
        if self.close_gate is not None:
            await self.close_gate.wait()
        self.closed = True
        if self.gate is not None:
            self.gate.set()
        if self.close_error is not None:
            raise self.close_error


class StubLoader(ModelLoader):
    kind = "stub"

    def __init__(self) -> None:
        self.cards: dict[str, ModelCard] = {}
        self.sizes: dict[str, int] = {}
        self.real_sizes: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}
        self.loads: list[str] = []
        self.models: list[StubModel] = []
        self.resolved = 0

    def add(
        self,
        name: str,
        size: int = GIB,
        *,
        autoload: bool = True,
        ttl_s: float | None = None,
        alias: str = "",
    ) -> str:
        self.cards[name] = ModelCard(
            id=name,
            aliases=(alias,) if alias else (),
            backend="fake",
            sources={"fake": RemoteSource(name=name)},
            autoload=autoload,
            idle_ttl_s=ttl_s,
        )
        self.sizes[name] = size
        return name

    def hold(self, name: str) -> asyncio.Event:
        self.gates[name] = asyncio.Event()
        return self.gates[name]

    @override
    def resolve(self, name: str) -> ModelCard:
        self.resolved += 1
        for card in self.cards.values():
            if name == card.id or name in card.aliases:
                return card
        raise UnknownModel(name)

    @override
    def estimate_bytes(self, card: ModelCard) -> int:
        return self.sizes[card.id]

    @override
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        self.loads.append(card.id)
        on_progress(LoadProgress("loading", 1, 2))
        if card.id in self.gates:
            await self.gates[card.id].wait()
        if card.id in self.errors:
            raise self.errors[card.id]
        model = StubModel(card.id, self.real_sizes.get(card.id, self.sizes[card.id]))
        self.models.append(model)
        return model

    def last(self, name: str) -> StubModel:
        return [m for m in self.models if m.card_id == name][-1]


class Bench:
    """A pool with its loader and clock."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.loader = StubLoader()
        self.options = options
        self._pool: PooledBackend | None = None

    @property
    def pool(self) -> PooledBackend:
        if self._pool is None:
            self._pool = PooledBackend(self.loader, clock=self.clock, **self.options)
        return self._pool

    async def use(self, name: str) -> list[EventBatch]:
        async with asyncio.timeout(5), aclosing(self.pool.generate(request(name))) as batches:
            return [batch async for batch in batches]

    def using(self, name: str) -> asyncio.Task[list[EventBatch]]:
        return asyncio.create_task(self.use(name))

    async def busy(self, name: str) -> tuple[asyncio.Task[list[EventBatch]], asyncio.Event]:
        """A request that runs until its gate is opened."""
        await self.load(name)
        model = self.loader.last(name)
        model.gate = gate = asyncio.Event()
        task = self.using(name)
        await self.until(lambda: model.running == 1)
        return task, gate

    async def load(self, name: str) -> list[LoadProgress]:
        async with asyncio.timeout(5), aclosing(self.pool.load(name)) as steps:
            return [step async for step in steps]

    async def status(self, name: str) -> ModelStatus | None:
        return next((m for m in (await self.pool.health()).models if m.id == name), None)

    async def state(self, name: str) -> str:
        status = await self.status(name)
        return "absent" if status is None else status.state

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll: an estimate is made in a thread."""
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.pool.aclose()


def limited(**limits: int) -> Bench:
    return Bench(limits=Limits(**limits))


# Loading


async def test_many_requests_share_one_load(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    tasks = [bench.using("m") for _ in range(20)]
    await bench.until(lambda: bench.loader.loads == ["m"])
    waiting = await bench.status("m")
    in_use = bench.pool._entries["m"].resident().busy  # so nothing can evict it before they have begun
    gate.set()
    answers = await asyncio.gather(*tasks)

    assert waiting is not None
    assert (waiting.state, waiting.waiting, in_use) == ("loading", 20, 20)
    assert bench.loader.loads == ["m"]
    assert all(answers)


async def test_a_load_and_a_request_share_one_load(bench: Bench):
    bench.loader.add("m")
    steps, _ = await asyncio.gather(bench.load("m"), bench.use("m"))

    assert bench.loader.loads == ["m"]
    assert steps[-1] == LoadProgress("ready", GIB, GIB)


async def test_joiners_of_a_failed_load_all_get_its_error_and_none_its_traceback(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    bench.loader.errors["m"] = UnusableModel("Truncated")
    tasks = [bench.using("m") for _ in range(3)]
    await bench.until(lambda: bench.loader.loads == ["m"])
    gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(error) for error in errors] == [UnusableModel] * 3
    assert len({id(error) for error in errors}) == 3


async def test_a_joiner_sees_the_progress_of_the_running_load(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    task = bench.using("m")
    await bench.until(lambda: bench.loader.loads == ["m"])
    await settle()
    steps = bench.pool.load("m")

    assert await anext(steps) == LoadProgress("loading", 1, 2)
    gate.set()
    assert [step.phase async for step in steps] == ["ready"]
    await task


async def test_closing_the_progress_does_not_stop_the_load(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    steps = bench.pool.load("m")
    await anext(steps)
    await steps.aclose()
    await bench.until(lambda: bench.loader.loads == ["m"])
    gate.set()

    await bench.use("m")
    assert bench.loader.loads == ["m"]


async def test_a_waiting_request_that_leaves_does_not_stop_the_load_for_the_others(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    first, second = bench.using("m"), bench.using("m")
    await bench.until(lambda: bench.loader.loads == ["m"])
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gate.set()

    assert await second


async def test_an_aborted_request_stops_waiting_for_the_load(bench: Bench):
    bench.loader.add("m")
    bench.loader.hold("m")
    wanted = request("m")
    task = asyncio.create_task(anext(bench.pool.generate(wanted)))  # type: ignore[arg-type]
    await bench.until(lambda: bench.loader.loads == ["m"])
    await bench.pool.abort(wanted.request_id)

    with pytest.raises(BackendFailed, match="aborted"):
        await task


async def test_the_wait_for_a_load_counts_as_queue_time(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    task = bench.using("m")
    await bench.until(lambda: bench.loader.loads == ["m"])
    await bench.clock.advance(2.0)
    gate.set()
    batches = await task

    assert batches[0] == [Started(2001.0, 3)]
    assert batches[-1][-1] == Finished(Usage(3, 1), queue_ms=2001.0)


async def test_an_alias_loads_its_card_and_a_loaded_model_is_not_looked_up_again(bench: Bench):
    bench.loader.add("m", alias="nick")
    await bench.load("nick")
    looked_up = bench.loader.resolved
    await bench.use("m")

    assert bench.loader.loads == ["m"]
    assert bench.loader.resolved == looked_up


async def test_with_autoload_off_a_request_is_told_so_and_a_load_makes_it_work(bench: Bench):
    bench.loader.add("m", autoload=False)

    with pytest.raises(ModelNotReady, match="loads on request only"):
        await bench.use("m")
    await bench.load("m")
    assert await bench.use("m")


async def test_with_autoload_off_a_request_still_joins_a_load_that_runs(bench: Bench):
    bench.loader.add("m", autoload=False)
    gate = bench.loader.hold("m")
    load = asyncio.create_task(bench.load("m"))
    await bench.until(lambda: bench.loader.loads == ["m"])
    task = bench.using("m")
    await settle()
    gate.set()

    assert await task
    await load


# Failed loads


async def test_a_failed_load_leaves_the_loaded_models_and_shows_its_message(bench: Bench):
    bench.loader.add("good")
    bench.loader.add("bad")
    bench.loader.errors["bad"] = UnusableModel("The file is truncated")
    await bench.load("good")
    with pytest.raises(UnusableModel):
        await bench.load("bad")

    assert await bench.state("good") == "loaded"
    status = await bench.status("bad")
    assert status is not None
    assert (status.state, status.message) == ("failed", "The file is truncated")
    assert (await bench.pool.health()).healthy


async def test_a_broken_file_is_not_tried_again_for_every_request(bench: Bench):
    bench.loader.add("bad")
    bench.loader.errors["bad"] = UnusableModel("Truncated")
    for _ in range(100):
        with pytest.raises(UnusableModel):
            await bench.use("bad")

    assert len(bench.loader.loads) == 1


async def test_the_next_request_after_the_back_off_tries_again(bench: Bench):
    bench.loader.add("bad")
    bench.loader.errors["bad"] = UnusableModel("Truncated")
    with pytest.raises(UnusableModel):
        await bench.use("bad")
    del bench.loader.errors["bad"]
    await bench.clock.advance(0.6)

    assert await bench.use("bad")
    status = await bench.status("bad")
    assert status is not None
    assert status.message is None


async def test_the_back_off_grows_and_is_bounded(bench: Bench):
    bench.loader.add("bad")
    bench.loader.errors["bad"] = UnusableModel("Truncated")
    for _ in range(60):
        with pytest.raises(UnusableModel):
            await bench.use("bad")
        await bench.clock.advance(1.0)

    assert 8 <= len(bench.loader.loads) <= 12


async def test_an_explicit_load_tries_at_once(bench: Bench):
    bench.loader.add("bad")
    bench.loader.errors["bad"] = UnusableModel("Truncated")
    with pytest.raises(UnusableModel):
        await bench.use("bad")
    del bench.loader.errors["bad"]

    assert (await bench.load("bad"))[-1].phase == "ready"


async def test_a_bug_in_a_loader_is_a_failure_without_its_text(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    bench.loader.add("bad")
    bench.loader.errors["bad"] = KeyError("/secret/path")
    with pytest.raises(BackendFailed) as raised:
        await bench.use("bad")

    assert "secret" not in raised.value.message
    assert "secret" in caplog.text


async def test_failed_names_do_not_pile_up(bench: Bench):
    for i in range(200):
        bench.loader.add(f"bad{i}")
        bench.loader.errors[f"bad{i}"] = UnusableModel("Truncated")
        with pytest.raises(UnusableModel):
            await bench.use(f"bad{i}")

    assert len((await bench.pool.health()).models) <= 64


async def test_an_engine_that_died_is_dropped_and_loaded_again(bench: Bench):
    bench.loader.add("m")
    await bench.use("m")
    bench.loader.last("m").dead = "The engine's thread stopped"
    assert await bench.state("m") == "failed"
    await bench.use("m")

    assert bench.loader.models[0].closed
    assert bench.loader.loads == ["m", "m"]
    assert await bench.state("m") == "loaded"


# Restart


async def test_an_engine_that_ended_by_itself_is_replaced_without_a_request(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    bench.loader.last("m").die()
    await bench.until(lambda: len(bench.loader.models) == 2)
    await settle()

    assert bench.loader.models[0].closed
    assert await bench.state("m") == "loaded"
    assert (await bench.pool.health()).healthy


async def test_a_failure_that_only_a_request_notices_is_repaired_after_it(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    task, gate = await bench.busy("m")
    bench.loader.last("m").dead = "The engine's thread stopped"
    gate.set()
    await task

    await bench.until(lambda: len(bench.loader.models) == 2)


async def test_the_backend_is_unhealthy_until_a_failed_engine_is_back(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    gate = bench.loader.hold("m")
    bench.loader.last("m").die("It ran out of luck")
    dead = await bench.pool.health()
    await bench.until(lambda: len(bench.loader.loads) == 2)
    loading = await bench.pool.health()
    gate.set()
    await bench.until(lambda: len(bench.loader.models) == 2)
    await settle()

    assert (dead.healthy, dead.message) == (False, "m: It ran out of luck")
    assert (loading.healthy, loading.message) == (False, "m is being restarted")
    assert (await bench.pool.health()).healthy


async def test_a_request_during_the_restart_waits_for_it(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    gate = bench.loader.hold("m")
    bench.loader.last("m").die()
    await bench.until(lambda: len(bench.loader.loads) == 2)
    waiting = bench.using("m")
    await settle()
    gate.set()

    assert await waiting
    assert bench.loader.loads == ["m", "m"]


async def test_a_model_that_loads_on_request_only_is_restarted_too(bench: Bench):
    bench.loader.add("m", autoload=False)
    await bench.load("m")
    bench.loader.last("m").dead = "The engine's thread stopped"

    assert await bench.use("m")


async def test_an_engine_that_keeps_dying_is_restarted_after_growing_pauses(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    bench.loader.last("m").die()
    await bench.until(lambda: len(bench.loader.models) == 2)
    await settle()
    bench.loader.last("m").die("It died again")
    await bench.until(lambda: bench.loader.models[1].closed)
    await settle()

    with pytest.raises(BackendUnavailable, match="It died again; it is being restarted") as refused:
        await bench.use("m")
    assert refused.value.retry_after_s
    assert len(bench.loader.loads) == 2
    await bench.clock.advance(0.5)
    await bench.until(lambda: len(bench.loader.models) == 3)


async def test_an_engine_that_served_long_enough_is_restarted_at_once_again(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    for number in (2, 3):
        await bench.clock.advance(STEADY_S)
        bench.loader.last("m").die()
        await bench.until(lambda number=number: len(bench.loader.models) == number)  # type: ignore[misc]
        await settle()

    assert (await bench.pool.health()).healthy


async def test_a_restart_that_fails_is_tried_again_without_a_request(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    bench.loader.errors["m"] = BackendFailed("No device")
    bench.loader.last("m").die()
    await bench.until(lambda: bench.pool._entries["m"].failures == 1)
    failed = await bench.pool.health()
    del bench.loader.errors["m"]
    await settle()
    await bench.clock.advance(1)
    await bench.until(lambda: len(bench.loader.models) == 2)
    await settle()

    assert (failed.healthy, failed.message) == (False, "m: No device")
    assert (await bench.pool.health()).healthy


async def test_an_unload_ends_a_restart(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    bench.loader.last("m").close_gate = closing = asyncio.Event()
    bench.loader.last("m").die()
    await bench.until(lambda: bench.pool._entries["m"].restarting)
    unload = asyncio.create_task(bench.pool.unload("m"))
    await settle()
    closing.set()
    await unload
    await bench.clock.advance(60)

    assert bench.loader.loads == ["m"]
    assert (await bench.pool.health()).healthy


async def test_an_engine_that_dies_while_draining_is_not_replaced(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    assert await bench.pool.drain(1)
    bench.loader.last("m").die()
    await bench.until(lambda: bench.loader.models[0].closed)
    await bench.clock.advance(60)

    assert bench.loader.loads == ["m"]


async def test_the_metrics_are_those_of_the_models_in_memory(bench: Bench):
    for name in ("a", "b", "c"):
        bench.loader.add(name)
        await bench.load(name)
        bench.loader.last(name).text = f"{name} 1\n".encode()
    await bench.pool.unload("b")

    assert await bench.pool.metrics() == b"a 1\nc 1\n"


# Room


async def test_the_model_used_longest_ago_makes_room_and_is_closed_first():
    bench = limited(max_loaded_models=2)
    for name in ("a", "b", "c"):
        bench.loader.add(name)
    for name in ("a", "b"):
        await bench.use(name)
        await bench.clock.advance(1)
    await bench.use("a")
    await bench.use("c")

    assert [await bench.state(n) for n in ("a", "b", "c")] == ["loaded", "absent", "loaded"]
    assert bench.loader.last("b").closed
    await bench.pool.aclose()


async def test_memory_is_free_before_the_next_load_begins():
    bench = limited(budget_bytes=GIB)
    bench.loader.add("a")
    bench.loader.add("b")
    await bench.use("a")
    closing = bench.loader.last("a").close_gate = asyncio.Event()
    task = bench.using("b")
    await bench.until(lambda: bench.pool._entries["a"].state == "unloading")
    await settle()
    before = list(bench.loader.loads)
    closing.set()
    await task

    assert before == ["a"]
    assert bench.loader.loads == ["a", "b"]
    await bench.pool.aclose()


async def test_a_busy_model_is_waited_for():
    bench = limited(budget_bytes=GIB)
    bench.loader.add("a")
    bench.loader.add("b")
    running, gate = await bench.busy("a")
    task = bench.using("b")
    await bench.until(lambda: bench.clock.sleeping == 1)
    before = list(bench.loader.loads)
    gate.set()

    assert await task
    assert await running
    assert before == ["a"]
    await bench.pool.aclose()


async def test_a_busy_model_that_never_ends_is_waited_for_only_so_long():
    bench = limited(budget_bytes=GIB)
    bench.loader.add("a")
    bench.loader.add("b")
    running, gate = await bench.busy("a")
    task = bench.using("b")
    await bench.until(lambda: bench.clock.sleeping == 1)
    await bench.clock.advance(31)

    with pytest.raises(InsufficientMemory, match=r"1\.00 GiB"):
        await task
    assert await bench.state("a") == "loaded"
    gate.set()
    assert await running
    await bench.pool.aclose()


async def test_a_model_larger_than_the_budget_is_refused_at_once_and_evicts_nobody():
    bench = limited(budget_bytes=2 * GIB)
    bench.loader.add("a")
    bench.loader.add("huge", 3 * GIB)
    await bench.use("a")

    with pytest.raises(InsufficientMemory, match=r"needs 3\.00 GiB; the memory for models is 2\.00 GiB"):
        await bench.use("huge")
    assert await bench.state("a") == "loaded"
    await bench.pool.aclose()


async def test_a_model_that_requests_wait_for_is_not_evicted_between_its_load_and_their_start():
    """Two models, room for one, both wanted at once: each is used before it goes, and neither starves."""
    bench = limited(max_loaded_models=1)
    bench.loader.add("a")
    bench.loader.add("b")
    answers = await asyncio.gather(*[bench.use(name) for name in ("a", "b") * 10])

    assert all(answers)
    assert len(bench.loader.loads) <= 6
    await bench.pool.aclose()


async def test_a_model_that_turned_out_larger_pushes_idle_ones_out():
    bench = limited(budget_bytes=3 * GIB)
    bench.loader.add("a")
    bench.loader.add("b", GIB)
    bench.loader.real_sizes["b"] = 3 * GIB
    await bench.use("a")
    await bench.use("b")
    await settle()

    assert [await bench.state(n) for n in ("a", "b")] == ["absent", "loaded"]
    await bench.pool.aclose()


async def test_a_failed_load_gives_its_reservation_back():
    bench = limited(budget_bytes=GIB)
    bench.loader.add("bad")
    bench.loader.add("good")
    bench.loader.errors["bad"] = UnusableModel("Truncated")
    with pytest.raises(UnusableModel):
        await bench.use("bad")

    assert await bench.use("good")
    await bench.pool.aclose()


# Unloading


async def test_an_unload_waits_for_running_requests_and_a_second_one_joins(bench: Bench):
    bench.loader.add("m")
    running, gate = await bench.busy("m")
    unloads = [asyncio.create_task(bench.pool.unload("m")) for _ in range(2)]
    await settle()
    closed_early = bench.loader.last("m").closed
    gate.set()
    await asyncio.gather(*unloads)

    assert not closed_early
    assert bench.loader.last("m").closed
    assert (await running)[-1]
    assert await bench.state("m") == "absent"


async def test_an_unload_ends_requests_that_run_too_long(bench: Bench):
    bench.loader.add("m")
    running, _ = await bench.busy("m")
    unload = asyncio.create_task(bench.pool.unload("m"))
    await settle()
    await bench.clock.advance(31)
    await unload

    with pytest.raises(BackendFailed, match="unloaded"):
        await running


async def test_a_request_during_an_unload_waits_and_loads_again(bench: Bench):
    bench.loader.add("m")
    running, gate = await bench.busy("m")
    unload = asyncio.create_task(bench.pool.unload("m"))
    await settle()
    late = bench.using("m")
    await settle()
    loads_before = len(bench.loader.loads)
    gate.set()
    await asyncio.gather(unload, running, late)

    assert loads_before == 1
    assert bench.loader.loads == ["m", "m"]
    assert len(bench.loader.models) == 2


async def test_a_load_during_an_unload_waits_for_it(bench: Bench):
    bench.loader.add("m")
    _, gate = await bench.busy("m")
    unload = asyncio.create_task(bench.pool.unload("m"))
    await settle()
    load = asyncio.create_task(bench.load("m"))
    await settle()
    gate.set()
    await unload

    assert next(iter(await load)).phase == "waiting"
    assert bench.loader.loads == ["m", "m"]


async def test_an_unload_during_a_load_is_a_conflict_and_harms_nothing(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    task = bench.using("m")
    await bench.until(lambda: bench.loader.loads == ["m"])
    with pytest.raises(Conflict):
        await bench.pool.unload("m")
    gate.set()

    assert await task


async def test_an_unload_of_an_unknown_model_is_told_so_and_of_an_unloaded_one_succeeds(bench: Bench):
    bench.loader.add("m")
    with pytest.raises(UnknownModel):
        await bench.pool.unload("other")
    await bench.pool.unload("m")

    assert await bench.state("m") == "absent"


async def test_a_loaded_model_whose_file_has_gone_can_still_be_used_and_unloaded(bench: Bench):
    bench.loader.add("m")
    await bench.use("m")
    del bench.loader.cards["m"]

    assert await bench.use("m")
    await bench.pool.unload("m")
    with pytest.raises(UnknownModel):
        await bench.use("m")


async def test_a_model_that_cannot_be_closed_cleanly_is_unloaded_all_the_same(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    bench.loader.add("m")
    await bench.use("m")
    bench.loader.last("m").close_error = RuntimeError("stuck")
    await bench.pool.unload("m")

    assert "stuck" in caplog.text
    assert await bench.use("m")


async def test_an_unload_forgets_a_failure(bench: Bench):
    bench.loader.add("bad")
    bench.loader.errors["bad"] = UnusableModel("Truncated")
    with pytest.raises(UnusableModel):
        await bench.use("bad")
    await bench.pool.unload("bad")

    assert await bench.state("bad") == "absent"


# Time


async def test_a_model_is_unloaded_when_it_idled_for_its_time_counted_from_the_last_requests_end(
    bench: Bench,
):
    bench.loader.add("m", ttl_s=60)
    await bench.pool.start()
    await bench.use("m")
    await bench.clock.advance(50)
    running, gate = await bench.busy("m")
    await bench.clock.advance(100)
    while_busy = await bench.state("m")
    gate.set()
    await running
    await bench.clock.advance(59)
    before = await bench.state("m")
    await bench.clock.advance(2)

    assert (while_busy, before) == ("loaded", "loaded")
    assert await bench.state("m") == "absent"
    assert bench.loader.last("m").closed


async def test_a_model_that_nobody_ever_used_idles_from_its_load_on(bench: Bench):
    bench.loader.add("m", ttl_s=60)
    await bench.pool.start()
    await bench.load("m")
    await bench.clock.advance(61)

    assert await bench.state("m") == "absent"


async def test_a_card_without_a_time_to_live_stays(bench: Bench):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.use("m")
    await bench.clock.advance(1e6)

    assert await bench.state("m") == "loaded"


# Preload and health


async def test_a_preloaded_card_makes_the_backend_healthy_only_once_it_is_loaded():
    bench = Bench(preload=("m",))
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    await bench.pool.start()
    await bench.until(lambda: bench.loader.loads == ["m"])
    loading = await bench.pool.health()
    gate.set()
    await bench.until(lambda: bool(bench.loader.models))
    await settle()

    assert (loading.healthy, loading.message) == (False, "m is being loaded")
    assert (await bench.pool.health()).healthy
    await bench.pool.aclose()


async def test_a_preloaded_card_that_was_unloaded_on_request_is_no_fault():
    bench = Bench(preload=("m",))
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    await bench.pool.unload("m")
    health = await bench.pool.health()

    assert (health.healthy, health.models[0].state) == (True, "unloaded")
    await bench.pool.aclose()


async def test_a_preload_that_failed_shows_and_is_tried_again_without_a_request():
    bench = Bench(preload=("m",))
    bench.loader.add("m")
    bench.loader.errors["m"] = UnusableModel("The file is truncated")
    await bench.pool.start()
    await bench.until(lambda: bench.pool._entries["m"].state == "failed")
    failed = await bench.pool.health()
    del bench.loader.errors["m"]
    await settle()
    await bench.clock.advance(1)
    await bench.until(lambda: bool(bench.loader.models))
    await settle()

    assert (failed.healthy, failed.message) == (False, "m: The file is truncated")
    assert (await bench.pool.health()).healthy
    await bench.pool.aclose()


async def test_a_preload_of_an_unknown_name_shows_in_health_and_start_does_not_raise():
    bench = Bench(preload=("nothing",))
    await bench.pool.start()
    health = await bench.pool.health()

    assert not health.healthy
    assert "nothing" in (health.message or "")
    await bench.pool.aclose()


# The end


async def test_draining_refuses_new_work_and_waits_for_the_old(bench: Bench):
    bench.loader.add("m")
    running, gate = await bench.busy("m")
    drain = asyncio.create_task(bench.pool.drain(60))
    await settle()
    with pytest.raises(Draining):
        await bench.use("m")
    with pytest.raises(Draining):
        await bench.load("m")
    gate.set()

    assert await drain is True
    assert await running


async def test_draining_is_bounded(bench: Bench):
    bench.loader.add("m")
    await bench.busy("m")
    drain = asyncio.create_task(bench.pool.drain(60))
    await settle()
    await bench.clock.advance(61)

    assert await drain is False


async def test_closing_ends_running_requests_and_waiting_ones(bench: Bench):
    bench.loader.add("m")
    bench.loader.add("slow")
    bench.loader.hold("slow")
    running, _ = await bench.busy("m")
    waiting = bench.using("slow")
    await bench.until(lambda: "slow" in bench.loader.loads)
    await bench.pool.aclose()
    ends = await asyncio.gather(running, waiting, return_exceptions=True)

    assert [type(end) for end in ends] == [BackendFailed, Draining]
    assert bench.loader.last("m").closed


async def test_closing_does_not_wait_for_an_unload_that_waits(bench: Bench):
    bench.loader.add("m")
    running, _ = await bench.busy("m")
    unload = asyncio.create_task(bench.pool.unload("m"))
    await settle()
    async with asyncio.timeout(2):
        await bench.pool.aclose()
    await unload

    with pytest.raises(BackendFailed):
        await running


async def test_closing_at_the_very_moment_of_an_unload_does_not_wait_either(bench: Bench):
    bench.loader.add("m")
    running, _ = await bench.busy("m")
    async with asyncio.timeout(2):
        await asyncio.gather(bench.pool.unload("m"), bench.pool.aclose())

    with pytest.raises(BackendFailed):
        await running


async def test_an_abort_reaches_the_model_that_runs_it_and_only_that(bench: Bench):
    bench.loader.add("m")
    bench.loader.add("other")
    await bench.use("other")
    await bench.load("m")
    bench.loader.last("m").gate = gate = asyncio.Event()
    wanted = request("m")
    generator = bench.pool.generate(wanted)
    await anext(generator)
    await bench.pool.abort(wanted.request_id)
    gate.set()
    _ = [batch async for batch in generator]
    await bench.pool.abort(wanted.request_id)

    assert bench.loader.last("m").aborted == [wanted.request_id]
    assert bench.loader.last("other").aborted == []


async def test_nothing_is_remembered_of_requests_that_ended(bench: Bench):
    bench.loader.add("m")
    bench.loader.add("bad")
    bench.loader.errors["bad"] = UnusableModel("Truncated")
    await bench.use("m")
    with pytest.raises(UnusableModel):
        await bench.use("bad")
    generator = bench.pool.generate(request("m"))
    await anext(generator)
    await generator.aclose()

    assert bench.pool._tickets == {}
    assert bench.pool._entries["m"].in_use == 0
    assert await bench.pool.count_tokens("m", TextPrompt(text="x")) == 3
    assert bench.pool._entries["m"].in_use == 0


# Any order of events

STEP = st.tuples(
    st.sampled_from(["use", "use", "use", "load", "unload", "cancel", "tick"]), st.sampled_from("abc")
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=14), st.integers(1, 3))
def test_whatever_happens_the_limits_hold_and_every_request_ends(steps: list[tuple[str, str]], most: int):
    async def play() -> None:
        bench = limited(max_loaded_models=most, budget_bytes=4 * GIB)
        for name, size in (("a", GIB), ("b", 2 * GIB), ("c", 3 * GIB)):
            bench.loader.add(name, size, ttl_s=5)
        await bench.pool.start()
        tasks: list[asyncio.Task[object]] = []
        for step, name in steps:
            if step == "use":
                tasks.append(asyncio.create_task(bench.use(name)))
            elif step == "load":
                tasks.append(asyncio.create_task(bench.load(name)))
            elif step == "unload":
                tasks.append(asyncio.create_task(bench.pool.unload(name)))
            elif step == "cancel" and tasks:
                tasks[-1].cancel()
            else:
                await bench.clock.advance(3)
            await asyncio.sleep(0)
            in_memory = [e for e in bench.pool._entries.values() if e.reserved]
            assert len(in_memory) <= most
            assert sum(e.size_bytes for e in in_memory) <= 4 * GIB
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(not isinstance(end, Exception) or isinstance(end, Conflict) for end in ends), [
            end for end in ends if isinstance(end, Exception)
        ]
        assert all(entry.in_use == 0 for entry in bench.pool._entries.values())
        assert bench.pool._tickets == {}
        await bench.pool.aclose()
        assert all(model.closed for model in bench.loader.models)

    asyncio.run(play())
