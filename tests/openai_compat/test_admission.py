"""Completion slots: who runs, who waits, who is refused."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import Draining, Overloaded
from openai_compat.admission import Admission, LocalOwnSlots, LocalSlots, OwnSlotStore, Slot
from openai_compat.config import WireConfig
from openai_compat.errors import TooManyAtOnce
from openai_compat.shared_limits import SharedOwnSlots, SharedSlots

spawn = multiprocessing.get_context("spawn")


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def admission(
    limit: int = 1, *, queue: int = 0, timeout_s: float = 30.0, clock: Clock | None = None
) -> Admission:
    """The admission of one process."""
    return Admission(
        LocalSlots(limit),
        num_slots=limit,
        places=LocalSlots(queue) if queue else None,
        queue_timeout_s=timeout_s,
        clock=clock or Clock(),
    )


async def turns(count: int = 5) -> None:
    """Let the other tasks go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_as_many_run_as_there_are_slots_and_the_next_is_refused() -> None:
    desk = admission(3)
    slots = [await desk.acquire("a") for _ in range(3)]

    with pytest.raises(Overloaded, match=r"^Concurrency limit exceeded$") as caught:
        await desk.acquire("a")
    assert caught.value.retry_after_s is not None
    assert 1 <= caught.value.retry_after_s <= 30
    assert desk.running == len(slots) == 3


async def test_a_released_slot_is_free_again() -> None:
    desk = admission(1)
    async with desk.slot("a") as slot:
        assert slot.queue_ms == 0.0
        assert desk.running == 1
    assert desk.running == 0
    async with desk.slot("b"):
        pass


async def test_a_slot_is_released_once_however_often_it_is_asked() -> None:
    desk = admission(2)
    other = await desk.acquire("b")
    slot = await desk.acquire("a")
    for _ in range(3):
        slot.release()

    assert desk.running == 1
    assert [await desk.acquire("c"), other]
    with pytest.raises(Overloaded):
        await desk.acquire("d")


async def test_a_failing_request_gives_its_slot_back() -> None:
    desk = admission(1)
    with pytest.raises(ZeroDivisionError):
        async with desk.slot("a"):
            raise ZeroDivisionError

    assert desk.running == 0


async def test_without_a_queue_nobody_waits() -> None:
    for desk in (admission(1, queue=0, timeout_s=5), admission(1, queue=5, timeout_s=0)):
        await desk.acquire("a")
        with pytest.raises(Overloaded):
            await desk.acquire("a")


async def test_a_waiting_request_gets_the_next_slot_and_knows_how_long_it_waited() -> None:
    clock = Clock()
    desk = admission(1, queue=1, clock=clock)
    first = await desk.acquire("a")
    waiting = asyncio.create_task(desk.acquire("b"))
    await turns()
    assert desk.waiting == 1

    clock.now += 0.25
    first.release()
    second = await waiting
    assert second.queue_ms == pytest.approx(250.0)
    assert (desk.running, desk.waiting) == (1, 0)


async def test_a_full_queue_refuses() -> None:
    desk = admission(1, queue=1)
    await desk.acquire("a")
    waiting = asyncio.create_task(desk.acquire("b"))
    await turns()

    with pytest.raises(Overloaded):
        await desk.acquire("c")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_waiting_ends_with_a_refusal_after_the_timeout() -> None:
    desk = admission(1, queue=1, timeout_s=0.01)
    await desk.acquire("a")

    for _ in range(2):  # the place in the queue is free again after the first
        with pytest.raises(Overloaded, match="Concurrency limit"):
            await desk.acquire("b")
    assert desk.waiting == 0


async def test_nobody_overtakes_who_waits() -> None:
    desk = admission(1, queue=2)
    first = await desk.acquire("a")
    order: list[str] = []

    async def run(name: str) -> None:
        async with desk.slot(name):
            order.append(name)

    early = asyncio.create_task(run("early"))
    await turns()
    first.release()
    late = asyncio.create_task(run("late"))
    await asyncio.gather(early, late)

    assert order == ["early", "late"]


async def test_nobody_overtakes_when_another_process_gives_a_slot_back() -> None:
    slots = LocalSlots(1)
    desk = Admission(
        slots, num_slots=1, places=LocalSlots(2), queue_timeout_s=30, poll_s=0.005, clock=Clock()
    )
    elsewhere = slots.try_acquire()
    assert elsewhere is not None
    order: list[str] = []

    async def run(name: str) -> None:
        async with desk.slot(name):
            order.append(name)

    early = asyncio.create_task(run("early"))
    await turns()
    slots.release(elsewhere)
    await asyncio.gather(early, asyncio.create_task(run("late")))

    assert order == ["early", "late"]


async def test_principals_take_turns_and_each_keeps_its_own_order() -> None:
    desk = admission(1, queue=10)
    first = await desk.acquire("x")
    order: list[str] = []

    async def run(principal: str, name: str) -> None:
        async with desk.slot(principal):
            order.append(name)
            await asyncio.sleep(0)

    tasks = []
    for principal, name in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]:
        tasks.append(asyncio.create_task(run(principal, name)))
        await turns()
    first.release()
    await asyncio.gather(*tasks)

    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    desk = admission(1, queue=1)
    first = await desk.acquire("a")
    gone = asyncio.create_task(desk.acquire("b"))
    await turns()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert desk.waiting == 0

    next_one = asyncio.create_task(desk.acquire("c"))
    await turns()
    first.release()
    (await next_one).release()
    assert desk.running == 0


async def test_a_slot_granted_to_a_client_that_leaves_at_that_moment_is_not_lost() -> None:
    desk = admission(1, queue=2)
    first = await desk.acquire("a")
    gone = asyncio.create_task(desk.acquire("b"))
    await turns()
    first.release()  # grants the slot …
    gone.cancel()  # … before the task can take it
    await asyncio.gather(gone, return_exceptions=True)

    assert desk.running == 0
    (await desk.acquire("c")).release()


async def test_that_slot_goes_to_the_next_in_the_queue() -> None:
    desk = admission(1, queue=2)
    first = await desk.acquire("a")
    gone = asyncio.create_task(desk.acquire("b"))
    patient = asyncio.create_task(desk.acquire("c"))
    await turns()
    first.release()
    gone.cancel()

    (await asyncio.wait_for(patient, 5)).release()
    await asyncio.gather(gone, return_exceptions=True)
    assert desk.running == 0


async def test_draining_refuses_the_new_and_the_waiting_and_lets_the_running_end() -> None:
    desk = admission(1, queue=2)
    running = await desk.acquire("a")
    waiting = asyncio.create_task(desk.acquire("b"))
    await turns()
    desk.drain()

    with pytest.raises(Draining) as caught:
        await desk.acquire("c")
    with pytest.raises(Draining):
        await waiting
    assert caught.value.retry_after_s is not None
    assert desk.draining
    assert not await desk.idle(0.0)
    running.release()
    assert await desk.idle(0.0)


async def test_idle_returns_when_the_last_one_ends() -> None:
    desk = admission(2)
    slots = [await desk.acquire("a"), await desk.acquire("a")]
    idle = asyncio.create_task(desk.idle(20.0))
    slots[0].release()
    await turns()
    assert not idle.done()

    slots[1].release()
    assert await idle


async def test_retry_after_follows_the_time_completions_take() -> None:
    clock = Clock()
    desk = admission(1, clock=clock)
    assert desk.retry_after_s == 1.0
    for _ in range(100):
        async with desk.slot("a"):
            clock.now += 12.0
    assert desk.retry_after_s == pytest.approx(12.0, abs=0.1)
    for _ in range(100):
        async with desk.slot("a"):
            clock.now += 4000.0
    assert desk.retry_after_s == 30.0


async def test_every_change_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    desk = Admission(
        LocalSlots(1),
        num_slots=1,
        places=LocalSlots(1),
        queue_timeout_s=30,
        on_change=lambda running, waiting: seen.append((running, waiting)),
    )
    first = await desk.acquire("a")
    waiting = asyncio.create_task(desk.acquire("b"))
    await turns()
    assert seen[-1] == (1, 1)
    first.release()
    (await waiting).release()

    assert seen[0] == (1, 0)
    assert seen[-1] == (0, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["come", "leave", "end"]), st.integers(0, 5)), max_size=60))
def test_no_sequence_of_events_loses_or_doubles_a_slot(events: list[tuple[str, int]]) -> None:
    async def play() -> None:
        desk = admission(2, queue=3)
        tasks: list[asyncio.Task[Slot]] = []
        for kind, number in events:
            if kind == "come":
                tasks.append(asyncio.create_task(desk.acquire(f"p{number}")))
            elif tasks and kind == "leave":
                tasks[number % len(tasks)].cancel()
            elif tasks:
                task = tasks[number % len(tasks)]
                if task.done() and not task.cancelled() and task.exception() is None:
                    task.result().release()
            if number % 2:
                await turns()
            held = [t for t in tasks if t.done() and not t.cancelled() and t.exception() is None]
            assert len(held) <= len(tasks)
            assert desk.running <= 2
            assert desk.waiting <= 3
        for _ in range(5):
            await turns()
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is None:
                    task.result().release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (desk.running, desk.waiting) == (0, 0)
        assert len([await desk.acquire("x") for _ in range(2)]) == 2

    asyncio.run(play())


def hold_slots(path: Path, size: int, wanted: int, answer: Connection) -> None:
    """In another process: take slots, say how many, and keep them until killed."""
    slots = SharedSlots.open(path, size)
    answer.send(sum(slots.try_acquire() is not None for _ in range(wanted)))
    answer.poll(60)  # ends with the test, however that ends


def test_a_killed_process_gives_its_slots_back(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=hold_slots, args=(path, 4, 3, theirs))
    process.start()
    assert ours.recv() == 3
    slots = SharedSlots.open(path, 4)
    mine = slots.try_acquire()
    assert mine is not None
    assert slots.try_acquire() is None

    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    assert sum(slots.try_acquire() is not None for _ in range(4)) == 3


def test_two_processes_never_hold_more_than_there_are(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    workers = []
    for _ in range(2):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=hold_slots, args=(path, 5, 5, theirs))
        process.start()
        workers.append((process, ours))
    total = sum(pipe.recv() for _, pipe in workers)
    for process, _ in workers:
        process.kill()
        process.join(20)

    assert total == 5


def test_a_process_does_not_take_its_own_slot_twice(tmp_path: Path) -> None:
    slots = SharedSlots.open(tmp_path / "slots", 2)

    assert {slots.try_acquire(), slots.try_acquire()} == {0, 1}
    assert slots.try_acquire() is None
    slots.release(0)
    slots.release(0)
    assert slots.try_acquire() == 0


def test_opening_a_file_twice_gives_the_same_slots(tmp_path: Path) -> None:
    assert SharedSlots.open(tmp_path / "slots", 2) is SharedSlots.open(tmp_path / "slots", 2)


async def test_a_waiting_request_sees_a_slot_that_another_process_gave_back(tmp_path: Path) -> None:
    config = WireConfig(
        default_backend="fake",
        num_workers=2,
        shared_dir=tmp_path,
        max_concurrent_completions=1,
        queue_size=1,
        queue_timeout_s=20,
    )
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=hold_slots, args=(tmp_path / "completion_slots", 1, 1, theirs))
    process.start()
    assert await asyncio.to_thread(ours.recv) == 1
    desk = Admission.from_config(config)
    waiting = asyncio.create_task(desk.acquire("a"))
    await turns()
    assert desk.waiting == 1

    process.kill()
    (await asyncio.wait_for(waiting, 20)).release()
    await asyncio.to_thread(process.join, 20)


# One principal's own limit


@pytest.fixture(params=["local", "shared"])
def own_slots(request: pytest.FixtureRequest, tmp_path: Path) -> OwnSlotStore:
    return LocalOwnSlots() if request.param == "local" else SharedOwnSlots.open(tmp_path / "own")


def test_a_principal_has_as_many_own_slots_as_his_limit_says(own_slots: OwnSlotStore) -> None:
    numbers = [own_slots.try_acquire("a", 2) for _ in range(3)]

    assert sorted(number for number in numbers if number is not None) == [0, 1]
    assert own_slots.try_acquire("b", 1) == 0
    own_slots.release("a", 0)
    assert own_slots.try_acquire("a", 2) == 0
    assert own_slots.try_acquire("a", 3) == 2


async def test_a_principal_at_its_own_limit_is_refused_while_there_is_room() -> None:
    desk = admission(3)
    async with desk.slot("a", 1):
        with pytest.raises(TooManyAtOnce, match="1 completions") as caught:
            await desk.slot("a", 1).__aenter__()
        async with desk.slot("b", 1), desk.slot("c"):
            assert desk.running == 3
    async with desk.slot("a", 1):
        assert desk.running == 1

    assert (caught.value.retry_after_s or 0) >= 1


async def test_who_waits_counts_for_the_principals_own_limit_and_a_refusal_does_not() -> None:
    desk = admission(1, queue=1)
    first = await desk.acquire("x")
    waiting = asyncio.create_task(desk.slot("a", 1).__aenter__())
    await turns()

    with pytest.raises(TooManyAtOnce):
        await desk.slot("a", 1).__aenter__()
    with pytest.raises(Overloaded):
        await desk.slot("b", 1).__aenter__()
    first.release()
    (await waiting).release()
    async with desk.slot("b", 1):
        pass


async def test_own_slots_are_given_back_when_a_waiting_request_leaves() -> None:
    desk = admission(1, queue=2)
    first = await desk.acquire("x")
    waiting = asyncio.create_task(desk.slot("a", 1).__aenter__())
    await turns()
    waiting.cancel()
    await asyncio.wait((waiting,))
    first.release()

    async with desk.slot("a", 1):
        assert desk.running == 1


def test_own_slots_of_a_worker_that_is_killed_are_free_again(tmp_path: Path) -> None:
    path = tmp_path / "own"
    code = (
        "import sys; from pathlib import Path; from openai_compat.shared_limits import SharedOwnSlots\n"
        f"print(SharedOwnSlots.open(Path({str(path)!r})).try_acquire('a', 1), flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    slots = SharedOwnSlots.open(path)
    try:
        assert worker.stdout.readline() == b"0\n"
        assert slots.try_acquire("a", 1) is None
        assert slots.try_acquire("b", 1) == 0
    finally:
        worker.kill()
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()

    assert slots.try_acquire("a", 1) == 0
