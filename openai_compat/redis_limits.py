"""Limits and spending that replicas share, in Redis. Every decision is one script, so it is one step for everybody.

Time is Redis's own: the clocks of the replicas need not agree.

    rate:NAME       when the principal's bucket is full again, Unix seconds (see `rate_limit`)
    slots:KIND      sorted set: lease -> when it ends; likewise own:NAME, one principal's own
    spent:NAME      hash: day since 1970, billionths of a dollar
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import Coroutine
from typing import Any, Final

from openai_compat.budgets import DAY_S, Spent, StoreUnavailable
from openai_compat.redis_link import RedisLink, Script

LEASE_S: Final = 15.0
"""How long a replica that died keeps its slots. It renews them three times as often."""
FIRST_LEASE: Final = 1 << 32
"""Numbers of leases begin here, above those of any slots in this process."""

_log = logging.getLogger(__name__)

_NOW: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
"""

TAKE: Final = Script(
    _NOW
    + """
local interval, capacity = tonumber(ARGV[1]), tonumber(ARGV[1]) * tonumber(ARGV[2])
local full_at = tonumber(redis.call('GET', KEYS[1]) or now)
full_at = math.min(math.max(full_at, now), now + capacity)
local wait = full_at + interval - (now + capacity)
if wait > 0.000002 then
    return string.format('%.6f', wait)
end
full_at = full_at + interval
redis.call('SET', KEYS[1], string.format('%.6f', full_at), 'PX', math.ceil((full_at - now) * 1000) + 1)
return '0'
"""
)

ACQUIRE: Final = Script(
    _NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
    return 0
end
redis.call('ZADD', KEYS[1], string.format('%.6f', now + tonumber(ARGV[3])), ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[3]) * 2000))
return 1
"""
)

RENEW: Final = Script(
    _NOW
    + """
for i, key in ipairs(KEYS) do
    redis.call('ZADD', key, string.format('%.6f', now + tonumber(ARGV[1])), ARGV[i + 1])
    redis.call('PEXPIRE', key, math.ceil(tonumber(ARGV[1]) * 2000))
end
return #KEYS
"""
)

RELEASE: Final = Script(
    """
for i, key in ipairs(KEYS) do
    redis.call('ZREM', key, ARGV[i])
end
return #KEYS
"""
)

SPENT: Final = Script(
    _NOW
    + """
local day = math.floor(now / 86400)
local kept = redis.call('HMGET', KEYS[1], 'day', 'nanos')
local nanos = '0'
if kept[1] == tostring(day) then
    nanos = kept[2]
end
return {nanos, string.format('%.3f', 86400 - now % 86400)}
"""
)

ADD: Final = Script(
    _NOW
    + """
local day = tostring(math.floor(now / 86400))
if redis.call('HGET', KEYS[1], 'day') ~= day then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'day', day)
end
redis.call('HINCRBY', KEYS[1], 'nanos', ARGV[1])
redis.call('EXPIRE', KEYS[1], 172800)
return 1
"""
)


class RedisBuckets:
    """The rate limiter's buckets."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def take(self, key: str, interval_s: float, burst: int) -> float | None:
        """See `rate_limit.RemoteBuckets`."""
        try:
            return float(await self._link.run(TAKE, [f"rate:{key}"], repr(interval_s), burst))
        except StoreUnavailable:
            return None


class RedisLeases:
    """Slots that are held for as long as their holder lives: leases that are renewed, and end by themselves."""

    def __init__(self, link: RedisLink, *, lease_s: float = LEASE_S) -> None:
        self._link = link
        self._lease_s = lease_s
        self._replica = secrets.token_hex(8)
        self._numbers = itertools.count(FIRST_LEASE)
        self._held: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def acquire(self, key: str, limit: int) -> int | None:
        """The number of a new lease of `key`; None when there are `limit` already. A caller that is cancelled while he
        waits leaves nothing behind.

        Raises: StoreUnavailable.
        """
        number = next(self._numbers)
        asking = asyncio.ensure_future(self._acquire(number, key, limit))
        try:
            granted = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda _: self.release(number))
            raise
        return number if granted else None

    def release(self, number: int) -> asyncio.Task[None] | None:
        """Give a lease back, in the background; the task ends when Redis knows. A number that is not held is
        ignored."""
        key = self._held.pop(number, None)
        return None if key is None else self._spawn(self._release({number: key}))

    async def aclose(self) -> None:
        """Give everything back."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait((self._renewing,))
        held, self._held = self._held, {}
        if held:
            self._spawn(self._release(held))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._lease_s)

    async def _acquire(self, number: int, key: str, limit: int) -> bool:
        if not await self._link.run(ACQUIRE, [key], self._id(number), limit, self._lease_s):
            return False
        self._held[number] = key
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._keep_renewing())
        return True

    async def _keep_renewing(self) -> None:
        while self._held:
            await asyncio.sleep(self._lease_s / 3)
            renewed = dict(self._held)
            if not renewed:
                return
            with contextlib.suppress(StoreUnavailable):
                ids = map(self._id, renewed)
                await self._link.run(RENEW, list(renewed.values()), self._lease_s, *ids)
            # What was given back while the renewal was under way may have come back with it.
            gone = {number: key for number, key in renewed.items() if number not in self._held}
            if gone:
                await self._release(gone)

    async def _release(self, leases: dict[int, str]) -> None:
        with contextlib.suppress(StoreUnavailable):  # then they end by themselves
            await self._link.run(RELEASE, list(leases.values()), *map(self._id, leases))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _id(self, number: int) -> str:
        return f"{self._replica}:{number}"


class RedisSpending:
    """A `SpendingStore`. It is as durable as the Redis is."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def spent(self, name: str) -> Spent:
        """See `SpendingStore`."""
        nanos, resets_in_s = await self._link.run(SPENT, [f"spent:{name}"])
        return Spent(int(nanos), min(float(resets_in_s), DAY_S))

    async def add(self, name: str, nanos: int) -> None:
        """See `SpendingStore`."""
        await self._link.run(ADD, [f"spent:{name}"], nanos)

    async def aclose(self) -> None:
        """The link is its owner's to close."""
