"""One Redis, as this process reaches it: scripts, a time limit, and patience with one that is away.

The first failure is logged and for `retry_s` nothing is sent any more, so that an outage costs one request a time-out
and not each of them. Then one call tries again.

`redis` is imported here alone, and only where an address is given.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from openai_compat.budgets import StoreUnavailable

if TYPE_CHECKING:
    from redis.asyncio import Redis

TIMEOUT_S: Final = 0.5
RETRY_S: Final = 1.0
MAX_CONNECTIONS: Final = 64

_log = logging.getLogger(__name__)


class Script:
    """A Lua script. Redis keeps it under its digest, so that only the digest is sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisLink:
    """Runs scripts. Used from one event loop."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = RETRY_S,
        on_failure: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is connected yet. `prefix` goes before every key. Raises: ValueError for an address that is none."""
        from redis import exceptions
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._errors = (exceptions.RedisError, OSError, TimeoutError)
        self._forgotten = exceptions.NoScriptError
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # Once, at once: a connection that the server closed while it was idle is no failure.
            retry=Retry(NoBackoff(), 1),
        )
        self._redis: Redis = Redis.from_pool(pool)
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._on_failure = on_failure
        self._clock = clock
        self._try_at = 0.0
        self._is_down = False

    async def run(self, script: Script, keys: Sequence[str], *arguments: str | int | float) -> Any:
        """What the script returns. Raises: StoreUnavailable."""
        now = self._clock()
        if self._is_down:
            if now < self._try_at:
                raise StoreUnavailable("Redis is away")
            # The others wait for what this call finds out.
            self._try_at = now + max(self._retry_s, self._timeout_s)
        named = [self._prefix + key for key in keys]
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    answer = await self._redis.evalsha(script.digest, len(named), *named, *arguments)
                except self._forgotten:
                    answer = await self._redis.eval(script.text, len(named), *named, *arguments)
        except self._errors as exc:
            self._failed(exc)
            raise StoreUnavailable(f"Redis: {_words(exc)}") from None
        if self._is_down:
            self._is_down = False
            _log.warning("Redis is back; its limits and budgets are in force again")
        return answer

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    def _failed(self, exc: BaseException) -> None:
        self._on_failure()
        self._try_at = self._clock() + self._retry_s
        if not self._is_down:
            self._is_down = True
            _log.error("Redis is away (%s); until it is back each replica keeps its own limits", _words(exc))


def _words(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
