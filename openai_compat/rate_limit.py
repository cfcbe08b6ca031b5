"""A token bucket per principal, in the form that needs one number per bucket.

Instead of counting tokens, a bucket keeps the moment at which it will be full again. A bucket that was never
touched and one that is full again are then the same thing, so forgetting a full bucket changes no answer.
The state is one float, which is also what the workers share (`shared_limits.SharedBuckets`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from openai_compat.config import WireConfig
from openai_compat.errors import RateLimited
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


class RateLimiter:
    """`rate_per_s` requests a second and principal, `burst` of them at once. A rate of 0 is no limit."""

    def __init__(
        self,
        store: BucketStore,
        *,
        rate_per_s: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._interval_s = 1.0 / rate_per_s if rate_per_s > 0 else 0.0
        self._burst = burst
        self._clock = clock

    @classmethod
    def from_config(cls, config: WireConfig) -> RateLimiter:
        """In memory for one worker, in the shared folder for several."""
        store: BucketStore
        if config.num_workers > 1 and config.shared_dir is not None:
            store = SharedBuckets.open(config.shared_dir / "rate_limit", capacity=config.max_principals)
        else:
            store = LocalBuckets(config.max_principals)
        return cls(store, rate_per_s=config.rate_limit_rps, burst=config.rate_limit_burst)

    def spend(self, principal: str) -> None:
        """Take one token. Raises RateLimited, with the wait, when there is none."""
        if self._interval_s:
            wait_s = self._store.take(principal, self._clock(), self._interval_s, self._burst)
            if wait_s > 0.0:
                raise RateLimited(retry_after_s=wait_s)
