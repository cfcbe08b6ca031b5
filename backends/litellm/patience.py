"""When to try again, when to leave a deployment alone, and how long to wait for anything."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from backends.clock import Clock
from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    Overloaded,
    ServiceError,
    UpstreamError,
    UpstreamRateLimited,
)
from models.errors import ModelError

FIRST_DELAY_S: Final = 0.25
LONGEST_DELAY_S: Final = 4.0
WAITS_FOR_S: Final = 5.0
"""A provider that asks for a longer pause than this is not waited for: the caller learns the pause instead."""
MAX_DEPLOYMENTS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """`max_retries`: calls beyond the first, while nothing was passed on. `cooldown_after`: failures in a row that make
    a deployment rest for `cooldown_s`."""

    request_timeout_s: float = 300.0
    idle_timeout_s: float = 60.0
    max_retries: int = 2
    cooldown_after: int = 5
    cooldown_s: float = 10.0


def is_transient(error: ServiceError | ModelError) -> bool:
    """Whether the same call may succeed in a moment. A deadline that has passed has no moment left."""
    if isinstance(error, UpstreamRateLimited):
        return error.retry_after_s is not None
    transient = (BackendUnavailable, Overloaded)
    return isinstance(error, transient) or type(error) is UpstreamError


def counts_against(error: ServiceError | ModelError) -> bool:
    """Whether it says something about the deployment rather than about the request."""
    return isinstance(error, BackendUnavailable | Overloaded | UpstreamError | BackendTimeout)


def delay_s(
    attempt: int, error: ServiceError | ModelError, jitter: Callable[[], float] = random.random
) -> float:
    """Before the attempt after the `attempt`-th (0-based): anywhere up to a bound that doubles, never less than the
    provider asked for."""
    drawn: float = jitter() * min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**attempt)
    asked = error.retry_after_s if isinstance(error, ServiceError) else None
    return max(drawn, asked or 0.0)


class Cooldowns:
    """Which deployments rest, by their label. One success ends the count; after a rest one failure begins another."""

    def __init__(self, patience: Patience, clock: Clock) -> None:
        self._patience = patience
        self._clock = clock
        self._failures: dict[str, int] = {}
        self._until: dict[str, tuple[float, type[ServiceError], str]] = {}

    def check(self, label: str) -> None:
        """Raises: the kind of error that made the deployment rest, with what is left of the rest."""
        rest = self._until.get(label)
        if rest is None:
            return
        until, kind, message = rest
        left_s = until - self._clock.now()
        if left_s <= 0:
            del self._until[label]
            return
        raise kind(message, retry_after_s=left_s)

    def succeeded(self, label: str) -> None:
        if self._failures:
            self._failures.pop(label, None)

    def failed(self, label: str, error: ServiceError | ModelError) -> None:
        if not isinstance(error, ServiceError) or not counts_against(error):
            return
        if len(self._failures) >= MAX_DEPLOYMENTS:
            self._failures.clear()
        failures = self._failures[label] = self._failures.get(label, 0) + 1
        if isinstance(error, UpstreamRateLimited):
            if error.retry_after_s is not None:
                self._rest(label, error.retry_after_s, UpstreamRateLimited, error.message)
        elif failures >= self._patience.cooldown_after:
            wait_s = max(self._patience.cooldown_s, error.retry_after_s or 0.0)
            message = f"{error.message}; it rests after {failures} failures in a row"
            self._rest(label, wait_s, BackendUnavailable, message)

    def _rest(self, label: str, wait_s: float, kind: type[ServiceError], message: str) -> None:
        if len(self._until) >= MAX_DEPLOYMENTS:
            self._until.clear()
        self._until[label] = (self._clock.now() + wait_s, kind, message)
