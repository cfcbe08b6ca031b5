"""What a request at one of several servers says of that server, and of the request."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from backends.errors import (
    BackendTimeout,
    RequestError,
    ServiceError,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamRateLimited,
)
from backends.vllm.balancer import Balancer
from backends.vllm.transport import Unreached
from models.errors import ModelError, UnknownModel


class Attempt:
    """One request at one server: `with` it, and the balancer is told how it went. An error that another server may not
    have is not raised, but kept in `error`, which begins as that of the attempts before."""

    def __init__(
        self, balancer: Balancer, index: int, alarm: asyncio.Event, error: ServiceError | ModelError | None
    ) -> None:
        self.error = error
        self._balancer = balancer
        self._index = index
        self._alarm = alarm
        self._verdict = balancer.left

    def answered(self) -> None:
        """The server produces something."""
        self._verdict = self._balancer.succeeded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        is_kept = False
        match exc:
            case Unreached():
                self._verdict, self.error, is_kept = self._balancer.failed, exc.error, True
            case UnknownModel():
                # It serves other models since the last look.
                self._verdict, self.error, is_kept = self._balancer.succeeded, self.error or exc, True
                self._alarm.set()
            case UpstreamAuthFailed() | UpstreamRateLimited() | RequestError() | ModelError():
                self._verdict = self._balancer.succeeded
            case UpstreamError() | BackendTimeout():
                self._verdict = self._balancer.failed
        self._verdict(self._index)
        if self._verdict == self._balancer.failed:
            self._alarm.set()
        return is_kept
