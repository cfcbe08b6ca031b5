"""Who loads a model, who joins, and what a load that failed leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import BackendFailed, ModelNotReady
from backends.types import Finished, LoadProgress, Started, Usage
from models.errors import UnusableModel
from tests.backends.clocks import settle
from tests.backends.contract import request
from tests.backends.pool_bench import GIB, Bench

# Loading


async def test_many_requests_share_one_load(bench: Bench):
    bench.loader.add("m")
    gate = bench.loader.hold("m")
    tasks = [bench.using("m") for _ in range(20)]
    await bench.until(lambda: bench.loader.loads == ["m"])
    waiting = await bench.status("m")
    in_use = bench.rows["m"].resident().busy  # so nothing can evict it before they have begun
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
