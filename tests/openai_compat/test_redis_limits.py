"""What replicas share, on a real Redis: buckets, leases, spending, and what happens while it is away."""

from __future__ import annotations

import asyncio
import logging
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest

from openai_compat.budgets import Budgets, StoreUnavailable
from openai_compat.config import WireConfig
from openai_compat.errors import QuotaExceeded, RateLimited
from openai_compat.principals import Principal
from openai_compat.rate_limit import LocalBuckets, RateLimiter
from openai_compat.redis_limits import RENEW, RedisBuckets, RedisLeases, RedisSpending
from openai_compat.redis_link import RedisLink, Script
from tests.openai_compat.redis_server import RedisServer

ALICE = Principal(name="alice", is_named=True, budget_usd_per_day=1.0)
Connect = Callable[..., RedisLink]


@pytest.fixture
async def connect(redis_url: str) -> AsyncIterator[Connect]:
    """Links of several replicas to one Redis, with keys of this test."""
    prefix, links = f"test-{secrets.token_hex(4)}:", []

    def make(**parts: object) -> RedisLink:
        link = RedisLink(redis_url, **{"prefix": prefix, **parts})  # type: ignore[arg-type]
        links.append(link)
        return link

    yield make
    for link in links:
        await link.aclose()


async def raw(link: RedisLink, *command: str) -> object:
    """One command, as it stands."""
    return await link._redis.execute_command(*command)


# The link.


async def test_a_script_runs_whether_redis_knows_it_or_not(connect: Connect) -> None:
    link = connect()
    await raw(link, "SCRIPT", "FLUSH")

    assert [await link.run(Script("return ARGV[1]"), [], "x") for _ in range(2)] == [b"x", b"x"]


async def test_every_key_begins_with_the_prefix(connect: Connect) -> None:
    link = connect(prefix="mine-" + secrets.token_hex(4) + ":")
    await RedisBuckets(link).take("alice", 1.0, 5)
    await RedisSpending(link).add("alice", 5)
    leases = RedisLeases(link)
    await leases.acquire("slots:x", 1)

    keys = await raw(link, "KEYS", link._prefix + "*")
    await leases.aclose()
    assert len(keys) == 3  # type: ignore[arg-type]


async def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"scheme|port"):
        RedisLink("http://127.0.0.1:1", prefix="x")


async def test_a_redis_that_is_away_is_mentioned_once_and_asked_again_now_and_then(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    now, failures = [0.0], [0]

    def failed() -> None:
        failures[0] += 1

    link = RedisLink(redis_server.url, prefix="x", clock=lambda: now[0], retry_s=1.0, on_failure=failed)
    script = Script("return 1")
    assert await link.run(script, []) == 1
    redis_server.stop()

    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await link.run(script, [])
        assert failures == [1]
        now[0] += 1.1
        with pytest.raises(StoreUnavailable):
            await link.run(script, [])
        assert failures == [2]
        redis_server.start()
        now[0] += 1.1
        assert await link.run(script, []) == 1
        assert await link.run(script, []) == 1
    await link.aclose()
    assert caplog.text.count("Redis is away") == 1
    assert caplog.text.count("Redis is back") == 1


async def test_only_one_call_tries_a_redis_that_was_away(redis_server: RedisServer) -> None:
    now, failures = [0.0], [0]

    def failed() -> None:
        failures[0] += 1

    link = RedisLink(redis_server.url, prefix="x", clock=lambda: now[0], on_failure=failed)
    redis_server.stop()
    with pytest.raises(StoreUnavailable):
        await link.run(Script("return 1"), [])
    now[0] += 1.1

    tried = await asyncio.gather(
        *(link.run(Script("return 1"), []) for _ in range(5)), return_exceptions=True
    )

    assert all(isinstance(one, StoreUnavailable) for one in tried)
    assert failures == [2]
    await link.aclose()


async def test_a_redis_that_does_not_answer_costs_one_time_out(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.url, prefix="x", timeout_s=0.1, retry_s=60.0)
    await link.run(Script("return 1"), [])
    redis_server.pause()
    begun = time.monotonic()

    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            await link.run(Script("return 1"), [])

    assert time.monotonic() - begun < 1.0
    redis_server.go_on()
    await link.aclose()


async def test_a_password_never_stands_in_the_log(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    link = RedisLink(redis_server.url.replace("redis://", "redis://user:s3cr3t@"), prefix="x", timeout_s=0.3)

    with pytest.raises(StoreUnavailable) as caught:
        await link.run(Script("return 1"), [])
    await link.aclose()
    assert "Redis is away" in caplog.text
    assert "s3cr3t" not in caplog.text + str(caught.value)


def test_the_client_is_imported_only_where_there_is_an_address() -> None:
    code = "import sys, openai_compat.app; sys.exit('redis' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=50).returncode == 0


# Buckets.


async def test_replicas_share_a_bucket(connect: Connect) -> None:
    limiters = [
        RateLimiter(LocalBuckets(9), rate_per_s=0.5, burst=6, remote=RedisBuckets(connect()))
        for _ in range(2)
    ]
    passed, waits = 0, []
    for number in range(20):
        try:
            spending = limiters[number % 2].spend(Principal(name="a"))
            assert spending is not None
            await spending
            passed += 1
        except RateLimited as exc:
            waits.append(exc.retry_after_s)

    assert passed == 6
    assert all(wait_s is not None and 0 < wait_s <= 2.0 for wait_s in waits)


async def test_a_bucket_fills_again_with_redis_own_time(connect: Connect) -> None:
    buckets = RedisBuckets(connect())
    assert await buckets.take("a", 0.1, 1) == 0.0
    wait_s = await buckets.take("a", 0.1, 1)
    assert wait_s is not None
    assert 0 < wait_s <= 0.1

    await asyncio.sleep(wait_s + 0.01)
    assert await buckets.take("a", 0.1, 1) == 0.0


async def test_principals_have_buckets_of_their_own_and_full_ones_are_forgotten(connect: Connect) -> None:
    link = connect()
    buckets = RedisBuckets(link)
    assert [await buckets.take(name, 0.02, 1) for name in ("a", "b")] == [0.0, 0.0]

    await asyncio.sleep(0.1)
    assert await raw(link, "KEYS", link._prefix + "*") == []


async def test_a_principals_own_rate_counts_there_too(connect: Connect) -> None:
    limiter = RateLimiter(LocalBuckets(9), rate_per_s=100, burst=100, remote=RedisBuckets(connect()))
    slow = Principal(name="slow", rate_limit_rps=0.1, rate_limit_burst=1)
    free = Principal(name="free", rate_limit_rps=0)

    assert limiter.spend(free) is None
    spending = limiter.spend(slow)
    assert spending is not None
    await spending
    again = limiter.spend(slow)
    assert again is not None
    with pytest.raises(RateLimited):
        await again


async def test_while_redis_is_away_each_replica_limits_by_itself(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.url, prefix="x")
    limiter = RateLimiter(LocalBuckets(9), rate_per_s=0.1, burst=3, remote=RedisBuckets(link))
    redis_server.stop()
    passed = 0
    for _ in range(10):
        try:
            spending = limiter.spend(Principal(name="a"))
            assert spending is not None
            await spending
        except RateLimited:
            continue
        passed += 1
    await link.aclose()

    assert passed == 3


# Leases.


async def test_replicas_share_slots(connect: Connect) -> None:
    first, second = RedisLeases(connect()), RedisLeases(connect())
    held = [await first.acquire("k", 3), await second.acquire("k", 3), await first.acquire("k", 3)]

    assert None not in held
    assert await second.acquire("k", 3) is None
    assert await second.acquire("other", 3) is not None
    releasing = first.release(held[0] or 0)
    assert releasing is not None
    await releasing
    assert await second.acquire("k", 3) is not None
    await first.aclose()
    await second.aclose()


async def test_a_lease_is_given_back_once(connect: Connect) -> None:
    leases = RedisLeases(connect())
    number = await leases.acquire("k", 1)
    assert number is not None

    assert leases.release(number) is not None
    assert leases.release(number) is None
    await leases.aclose()


async def test_the_leases_of_a_dead_replica_end(connect: Connect) -> None:
    dead, alive = RedisLeases(connect(), lease_s=0.3), RedisLeases(connect(), lease_s=0.3)
    assert await dead.acquire("k", 1) is not None
    assert dead._renewing is not None
    dead._renewing.cancel()  # as its whole process would

    assert await alive.acquire("k", 1) is None
    await asyncio.sleep(0.4)
    assert await alive.acquire("k", 1) is not None
    await alive.aclose()


async def test_the_leases_of_a_living_replica_do_not(connect: Connect) -> None:
    holder, other = RedisLeases(connect(), lease_s=0.3), RedisLeases(connect(), lease_s=0.3)
    assert await holder.acquire("k", 1) is not None

    for _ in range(5):
        await asyncio.sleep(0.15)
        assert await other.acquire("k", 1) is None
    await holder.aclose()
    assert await other.acquire("k", 1) is not None
    await other.aclose()


async def test_what_is_given_back_during_a_renewal_does_not_come_back(connect: Connect) -> None:
    link = connect()
    leases = RedisLeases(link, lease_s=0.6)
    number = await leases.acquire("k", 1)
    run, renewed = link.run, asyncio.Event()

    async def run_late(script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        if script is RENEW:
            await cast(Any, leases.release(cast(int, number)))
        answer = await run(script, keys, *arguments)
        if script is RENEW:
            renewed.set()
        return answer

    link.run = run_late  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        await renewed.wait()
    await asyncio.sleep(0.05)

    assert await raw(link, "ZCARD", link._prefix + "k") == 0
    await leases.aclose()


async def test_a_caller_that_is_cancelled_while_he_asks_leaves_nothing(connect: Connect) -> None:
    link = connect()
    leases = RedisLeases(link)
    for _ in range(20):
        task = asyncio.create_task(leases.acquire("k", 5))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
    await asyncio.sleep(0.1)

    assert leases._held == {}
    assert await raw(link, "ZCARD", link._prefix + "k") == 0
    await leases.aclose()


async def test_a_redis_that_lost_everything_is_told_again(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.url, prefix="x", retry_s=0.01)
    leases = RedisLeases(link, lease_s=0.3)
    assert await leases.acquire("k", 1) is not None
    redis_server.stop()
    redis_server.start()

    await asyncio.sleep(0.3)
    assert await leases.acquire("k", 1) is None
    await leases.aclose()
    await link.aclose()


# Spending.


async def test_replicas_share_a_budget(connect: Connect) -> None:
    first, second = Budgets(RedisSpending(connect())), Budgets(RedisSpending(connect()))
    await first.add(ALICE, 0.5)
    await second.check(ALICE)
    await second.add(ALICE, 0.5)

    with pytest.raises(QuotaExceeded) as caught:
        await first.check(ALICE)
    assert 0 < (caught.value.retry_after_s or 0) <= 86_400


async def test_yesterdays_spending_is_over(connect: Connect) -> None:
    link = connect()
    spending = RedisSpending(link)
    await spending.add("alice", 7)
    await raw(link, "HINCRBY", link._prefix + "spent:alice", "day", "-1")

    assert (await spending.spent("alice")).nanos == 0
    await spending.add("alice", 2)
    assert (await spending.spent("alice")).nanos == 2
    assert 0 < int(await raw(link, "TTL", link._prefix + "spent:alice")) <= 172_800  # type: ignore[call-overload]


async def test_who_has_a_budget_is_refused_for_clouds_while_redis_is_away(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.url, prefix="x")
    redis_server.stop()

    with pytest.raises(StoreUnavailable):
        await RedisSpending(link).spent("alice")
    await link.aclose()


def test_the_address_never_shows_in_the_configuration() -> None:
    assert "s3cr3t" not in repr(WireConfig(default_backend="fake", redis_url="redis://:s3cr3t@h/0"))
