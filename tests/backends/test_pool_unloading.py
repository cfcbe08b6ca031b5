"""Models that leave: on request, or because nobody used them."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import BackendFailed, Conflict
from models.errors import UnknownModel, UnusableModel
from tests.backends.clocks import settle
from tests.backends.pool_bench import Bench

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
