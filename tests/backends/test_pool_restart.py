"""An engine that ended by itself is brought back without a request."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from backends import residents
from backends.errors import BackendFailed, BackendUnavailable
from backends.residents import STEADY_S
from tests.backends.clocks import settle
from tests.backends.pool_bench import Bench


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
    await bench.until(lambda: bench.rows["m"].failures == 1)
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
    await bench.until(lambda: bench.rows["m"].restarting)
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


async def test_looking_after_the_models_goes_on_after_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    bench.loader.add("m")
    await bench.pool.start()
    await bench.load("m")
    healthy = residents.decide

    def broken(*_: object) -> NoReturn:
        monkeypatch.setattr(residents, "decide", healthy)
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(residents, "decide", broken)
    bench.loader.last("m").die()
    await bench.until(lambda: "looking after the models failed" in caplog.text)
    await bench.clock.advance(residents.HOUSEKEEPING_RETRY_S)

    await bench.until(lambda: bench.loader.loads == ["m", "m"])
