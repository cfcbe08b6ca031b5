"""A token bucket per principal, in the form that needs one number per bucket.

Instead of counting tokens, a bucket keeps the moment at which it will be full again. A bucket that was never
touched and one that is full again are then the same thing, so forgetting a full bucket changes no answer.
The state is one float, which is also what the workers share (`shared_limits.SharedBuckets`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

from openai_compat.config import WireConfig
from openai_compat.errors import RateLimited
from openai_compat.principals import Principal
from openai_compat.shared_limits import SharedBuckets, take_token

__all__ = ["BucketStore", "LocalBuckets", "RateLimiter", "take_token"]


class BucketStore(Protocol):
    """Where the buckets live."""

    def take(self, key: str, now: float, interval_s: float, burst: int) -> float:
        """Take one token of `key`; 0.0 if there was one, else the seconds until there is."""


class LocalBuckets:
    """Buckets of one process, at most `capacity` of them; the one untouched for longest goes first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str, now: float, interval_s: float, burst: int) -> float:
        """See `BucketStore.take`."""
        full_at, wait_s = take_token(self._full_at.get(key, now), now, interval_s, burst)
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._capacity:
            self._full_at.popitem(last=False)
        return wait_s


class RemoteBuckets(Protocol):
    """Buckets that several replicas share."""

    async def take(self, key: str, interval_s: float, burst: int) -> float | None:
        """As `BucketStore.take`, on a clock of their own; None when they cannot be reached."""


class RateLimiter:
    """`rate_per_s` requests a second and principal, `burst` of them at once, unless the principal has a limit of its
    own. A rate of 0 is no limit.

    With `remote` buckets those count, and `store` stands in while they cannot be reached: each replica then limits
    by itself, rather than none of them or nobody being served.
    """

    def __init__(
        self,
        store: BucketStore,
        *,
        rate_per_s: float,
        burst: int,
        remote: RemoteBuckets | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._remote = remote
        self._clock = clock

    @classmethod
    def from_config(cls, config: WireConfig, remote: RemoteBuckets | None = None) -> RateLimiter:
        """In memory for one worker, in the shared folder for several, and `remote` for several replicas."""
        store: BucketStore
        if config.num_workers > 1 and config.shared_dir is not None:
            store = SharedBuckets.open(config.shared_dir / "rate_limit", capacity=config.max_principals)
        else:
            store = LocalBuckets(config.max_principals)
        return cls(store, rate_per_s=config.rate_limit_rps, burst=config.rate_limit_burst, remote=remote)

    def spend(self, principal: Principal) -> Awaitable[None] | None:
        """Take one token, at once or, for remote buckets, by awaiting what is returned.

        Raises RateLimited, with the wait, when there is none.
        """
        rate_per_s = self._rate_per_s if principal.rate_limit_rps is None else principal.rate_limit_rps
        if rate_per_s <= 0:
            return None
        burst = principal.rate_limit_burst or self._burst
        if self._remote is not None:
            return self._spend_remote(self._remote, principal.name, 1.0 / rate_per_s, burst)
        self._spend_here(principal.name, 1.0 / rate_per_s, burst)
        return None

    def _spend_here(self, name: str, interval_s: float, burst: int) -> None:
        wait_s = self._store.take(name, self._clock(), interval_s, burst)
        if wait_s > 0.0:
            raise RateLimited(retry_after_s=wait_s)

    async def _spend_remote(self, remote: RemoteBuckets, name: str, interval_s: float, burst: int) -> None:
        wait_s = await remote.take(name, interval_s, burst)
        if wait_s is None:
            self._spend_here(name, interval_s, burst)
        elif wait_s > 0.0:
            raise RateLimited(retry_after_s=wait_s)
