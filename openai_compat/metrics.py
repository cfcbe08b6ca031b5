"""Counters and histograms of the wire (signatures; the work follows)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from openai_compat.record import RequestRecord

Phase = Literal["queued", "prefill", "decode"]


class RequestTimer:
    """The measurements of one completion. Cheap per token; everything is booked once, at the end.

    `now` is `time.monotonic()`; None reads it. Exactly one of `finish`, `cancel`, `fail` counts; later calls do
    nothing. Nothing here raises.
    """

    def admitted(self, queue_ms: float, now: float | None = None) -> None:
        """The request holds a slot."""
        raise NotImplementedError

    def first_token(self, now: float | None = None) -> None:
        """The first content is about to be written."""
        raise NotImplementedError

    def token_gap(self, now: float | None = None) -> None:
        """A later chunk of content is about to be written."""
        raise NotImplementedError

    def finish(self, reason: str, *, prompt_tokens: int, completion_tokens: int) -> None:
        """The request was answered whole."""
        raise NotImplementedError

    def cancel(self, *, completion_tokens: int = 0) -> None:
        """The client left; the phase follows from what was called before."""
        raise NotImplementedError

    def fail(self) -> None:
        """The request ended with an error of ours or the engine's."""
        raise NotImplementedError


class Metrics:
    """All series of this process, and the scrape of all processes."""

    def __init__(
        self, *, directory: Path | None = None, known_models: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """`known_models` gives the card ids that may become label values; others count as `unknown`."""
        raise NotImplementedError

    def timer(self, record: RequestRecord, *, model: str, backend: str) -> RequestTimer:
        """Begin to measure a completion; notes model and backend in the record."""
        raise NotImplementedError

    def occupancy(self, running: int, waiting: int) -> None:
        """Completions that run and wait in this process (Admission calls it)."""
        raise NotImplementedError

    def request_ended(self, record: RequestRecord, now: float) -> None:
        """Count one HTTP request (the middleware calls it)."""
        raise NotImplementedError

    def render(self, extra: Iterable[bytes] = ()) -> bytes:
        """Prometheus text of every gateway worker of this host, with the runners' own texts after it."""
        raise NotImplementedError
