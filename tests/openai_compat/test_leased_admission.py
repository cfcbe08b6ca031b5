"""Completion slots that replicas share, on a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from backends.errors import Draining, Overloaded
from openai_compat import leased_admission
from openai_compat.admission import LocalSlots
from openai_compat.errors import TooManyAtOnce
from openai_compat.leased_admission import LeasedAdmission
from openai_compat.redis_limits import RedisLeases
from openai_compat.redis_link import RedisLink
from tests.openai_compat.redis_server import RedisServer
from tests.openai_compat.scripted_backend import Hang, ScriptedBackend
from tests.openai_compat.wire import HELLO, Connection, chat, make_app

Replica = Callable[..., LeasedAdmission]
T = TypeVar("T")


def desk(leases: RedisLeases, *, limit: int = 2, queue: int = 0, timeout_s: float = 5.0) -> LeasedAdmission:
    return LeasedAdmission(
        LocalSlots(limit),
        leases=leases,
        kind="completions",
        num_slots=limit,
        places=LocalSlots(queue) if queue else None,
        queue_size=queue,
        queue_timeout_s=timeout_s,
    )


@pytest.fixture
async def replica(redis_url: str) -> AsyncIterator[Replica]:
    """The same service's admission in several processes, as it were."""
    prefix, made = f"test-{secrets.token_hex(4)}:", []

    def make(**parts: Any) -> LeasedAdmission:
        link = RedisLink(redis_url, prefix=prefix)
        leases = RedisLeases(link)
        made.append((leases, link))
        return desk(leases, **parts)

    yield make
    for leases, link in made:
        await leases.aclose()
        await link.aclose()


async def soon(attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` gives once it is not refused any more: giving back takes a moment."""
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(Overloaded, TooManyAtOnce):
                return await attempt()
            await asyncio.sleep(0.01)


async def until_waiting(admission: LeasedAdmission, number: int) -> None:
    async with asyncio.timeout(5):
        while admission.waiting < number:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


async def test_the_limit_is_that_of_all_replicas_together(replica: Replica) -> None:
    first, second = replica(), replica()
    held = [await first.acquire("a"), await second.acquire("a")]

    for one in (first, second):
        with pytest.raises(Overloaded):
            await one.acquire("b")
    held[0].release()
    assert (await soon(lambda: second.acquire("b"))).queue_ms == 0.0
    assert (first.running, second.running) == (0, 2)


async def test_who_waits_gets_the_slot_that_another_replica_gave_back(replica: Replica) -> None:
    first, second = replica(limit=1, queue=4), replica(limit=1, queue=4)
    held = await first.acquire("a")
    waiting = asyncio.create_task(second.acquire("b"))
    await until_waiting(second, 1)

    held.release()
    slot = await asyncio.wait_for(waiting, 5)

    assert slot.queue_ms > 0
    assert (second.running, second.waiting) == (1, 0)


async def test_who_waits_here_does_not_wait_for_the_next_look(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_admission, "POLL_S", 60.0)
    one = replica(limit=1, queue=1)
    held = await one.acquire("a")
    waiting = asyncio.create_task(one.acquire("b"))
    await until_waiting(one, 1)
    await asyncio.sleep(0.1)  # it has looked once

    held.release()
    (await asyncio.wait_for(waiting, 4)).release()


async def test_places_in_the_queue_are_those_of_all_replicas_together(replica: Replica) -> None:
    first, second = replica(limit=1, queue=1), replica(limit=1, queue=1)
    held = await first.acquire("a")
    waiting = asyncio.create_task(first.acquire("b"))
    await until_waiting(first, 1)

    with pytest.raises(Overloaded):
        await second.acquire("c")
    held.release()
    (await asyncio.wait_for(waiting, 5)).release()


async def test_waiting_ends_with_its_time_and_leaves_nothing(replica: Replica) -> None:
    first = replica(limit=1, queue=1, timeout_s=0.05)
    held = await first.acquire("a")

    for _ in range(2):
        with pytest.raises(Overloaded):
            await first.acquire("b")
        assert first.waiting == 0
    held.release()
    (await soon(lambda: first.acquire("c"))).release()


async def test_principals_take_turns_within_a_replica(replica: Replica) -> None:
    one = replica(limit=1, queue=9)
    held, order = await one.acquire("x"), []

    async def wait(principal: str, number: int) -> None:
        async with one.slot(principal):
            order.append(principal)

    tasks = []
    for number, principal in enumerate("aaabb"):
        tasks.append(asyncio.create_task(wait(principal, number)))
        await until_waiting(one, number + 1)
    held.release()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert order == ["a", "b", "a", "b", "a"]


async def test_a_waiting_request_that_leaves_passes_the_slot_on(replica: Replica) -> None:
    one = replica(limit=1, queue=4)
    held = await one.acquire("a")
    gone = asyncio.create_task(one.acquire("b"))
    patient = asyncio.create_task(one.acquire("c"))
    await until_waiting(one, 2)

    gone.cancel()
    held.release()
    (await asyncio.wait_for(patient, 5)).release()
    assert one.running == 0


async def test_a_principals_own_limit_is_that_of_all_replicas_together(replica: Replica) -> None:
    first, second = replica(limit=9), replica(limit=9)
    held = await first.slot("a", 1).__aenter__()

    with pytest.raises(TooManyAtOnce):
        await second.slot("a", 1).__aenter__()
    async with second.slot("b", 1):
        pass
    held.release()
    slot = await soon(second.slot("a", 1).__aenter__)
    assert second.running == 1
    slot.release()


async def test_a_principals_own_limit_holds_here_while_redis_is_away(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.url, prefix="x")
    one = desk(RedisLeases(link), limit=9)
    redis_server.stop()

    async with one.slot("a", 1):
        with pytest.raises(TooManyAtOnce):
            await one.slot("a", 1).__aenter__()
    async with one.slot("a", 1):
        assert one.running == 1
    await link.aclose()


async def test_a_refusal_gives_the_principals_own_place_back(replica: Replica) -> None:
    one = replica(limit=1)
    held = await one.acquire("x")
    with pytest.raises(Overloaded):
        await one.slot("a", 1).__aenter__()
    held.release()

    (await soon(one.slot("a", 1).__aenter__)).release()


async def test_a_draining_replica_takes_nobody_and_sends_those_that_wait_away(replica: Replica) -> None:
    one = replica(limit=1, queue=4)
    held = await one.acquire("a")
    waiting = asyncio.create_task(one.acquire("b"))
    await until_waiting(one, 1)

    one.drain()
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await one.acquire("c")
    assert not await one.idle(0.01)
    held.release()
    assert await one.idle(1.0)


async def test_while_redis_is_away_the_limit_is_this_replicas_own(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.url, prefix="x", retry_s=0.01)
    leases = RedisLeases(link)
    one = desk(leases, limit=3, queue=1)
    before = await one.acquire("a")
    redis_server.stop()

    during = [await one.acquire("a"), await one.acquire("a")]
    waiting = asyncio.create_task(one.acquire("b"))
    await until_waiting(one, 1)
    with pytest.raises(Overloaded):
        await one.acquire("c")
    before.release()
    during.append(await asyncio.wait_for(waiting, 5))
    assert one.running == 3

    redis_server.start()
    for slot in during:
        slot.release()
    assert one.running == 0
    (await soon(lambda: one.acquire("a"))).release()
    await leases.aclose()
    await link.aclose()


@contextlib.contextmanager
def holder(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the only slot, with leases of half a second."""
    code = f"""
    import asyncio, os
    from openai_compat.redis_limits import RedisLeases
    from openai_compat.redis_link import RedisLink

    async def main():
        leases = RedisLeases(RedisLink({url!r}, prefix="x"), lease_s=0.5)
        print(await leases.acquire("slots:completions", 1), flush=True)
        await asyncio.sleep(60)

    asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, env={**os.environ}
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() != b""
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_replica_that_is_killed_gives_its_slots_back(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.url, prefix="x")
    one = desk(RedisLeases(link), limit=1)
    with holder(redis_server.url):
        await asyncio.sleep(0.7)
        with pytest.raises(Overloaded):
            await one.acquire("a")

    (await soon(lambda: one.acquire("a"))).release()
    await one._leases.aclose()
    await link.aclose()


# Whole services.


async def test_two_services_with_one_redis_have_one_limit(redis_url: str) -> None:
    parts: dict[str, Any] = {
        "redis_url": redis_url,
        "redis_prefix": f"test-{secrets.token_hex(4)}:",
        "max_concurrent_completions": 1,
    }
    backend = ScriptedBackend(script=[Hang()])
    first, second = make_app(backend, **parts), make_app(**parts)
    async with first.router.lifespan_context(first), second.router.lifespan_context(second):
        connection = Connection(first, "POST", "/v1/chat/completions", body=json.dumps(HELLO).encode())
        running = asyncio.create_task(connection.run())
        await backend.reached.wait()

        reply = await chat(second)
        assert (reply.status, reply.error["code"]) == (503, "concurrency_limit")

        connection.leave()
        await running
        async with asyncio.timeout(5):
            while (await chat(second)).status != 200:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)


async def test_two_services_with_one_redis_have_one_rate(redis_url: str) -> None:
    parts: dict[str, Any] = {
        "redis_url": redis_url,
        "redis_prefix": f"test-{secrets.token_hex(4)}:",
        "rate_limit_rps": 0.1,
        "rate_limit_burst": 3,
    }
    apps = [make_app(**parts), make_app(**parts)]
    async with apps[0].router.lifespan_context(apps[0]), apps[1].router.lifespan_context(apps[1]):
        replies = [await chat(apps[number % 2]) for number in range(6)]

    assert [reply.status for reply in replies] == [200, 200, 200, 429, 429, 429]
    assert int(replies[-1].headers["retry-after"]) >= 1


async def test_a_service_works_while_its_redis_is_away(redis_server: RedisServer) -> None:
    app = make_app(redis_url=redis_server.url, rate_limit_rps=0.1, rate_limit_burst=2)
    redis_server.stop()
    async with app.router.lifespan_context(app):
        assert [(await chat(app)).status for _ in range(3)] == [200, 200, 429]
        text = app.state.gateway.metrics.render().decode()

    assert "llm:redis_failures_total 0" not in text
