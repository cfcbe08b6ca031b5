"""Who is evicted, who is waited for, and what is too large."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import InsufficientMemory
from models.errors import UnusableModel
from tests.backends.clocks import settle
from tests.backends.pool_bench import GIB, limited


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
    await bench.until(lambda: bench.rows["a"].state == "unloading")
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
