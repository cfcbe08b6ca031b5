"""The pool as a whole: health, the end, and any order of events."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import BackendFailed, Conflict, Draining
from backends.types import TextPrompt
from models.errors import UnusableModel
from tests.backends.clocks import settle
from tests.backends.contract import request
from tests.backends.pool_bench import GIB, Bench, limited

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
    await bench.until(lambda: bench.rows["m"].state == "failed")
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
    assert bench.rows["m"].in_use == 0
    assert await bench.pool.count_tokens("m", TextPrompt(text="x")) == 3
    assert bench.rows["m"].in_use == 0


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
            in_memory = [e for e in bench.rows.values() if e.reserved]
            assert len(in_memory) <= most
            assert sum(e.size_bytes for e in in_memory) <= 4 * GIB
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(not isinstance(end, Exception) or isinstance(end, Conflict) for end in ends), [
            end for end in ends if isinstance(end, Exception)
        ]
        assert all(entry.in_use == 0 for entry in bench.rows.values())
        assert bench.pool._tickets == {}
        await bench.pool.aclose()
        assert all(model.closed for model in bench.loader.models)

    asyncio.run(play())
