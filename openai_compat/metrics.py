"""What the wire counts. Names as in vLLM, with the prefix `llm:`; docs/metrics.md lists them.

Label values come from bounded sets only: model ids of the catalogue, backend kinds, route templates, known
methods, statuses, error codes. Nothing that a client can make up becomes a label.

Measuring must never break a request, so the public methods swallow and log their own failures.
"""

from __future__ import annotations

import functools
import logging
import shutil
import tempfile
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, ParamSpec

from models.card import FallbackReason
from openai_compat.exposition import Cell, HistogramCells, SeriesFiles, merge_texts
from openai_compat.principals import Principal
from openai_compat.record import RequestRecord

Phase = Literal["queued", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("queued", "prefill", "decode")

UNKNOWN = "unknown"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})
_KINDS = frozenset({"llamacpp", "vllm", "litellm", "fake"})
_REFUSALS = frozenset({401, 408, 413, 415, 422, 429, 503})
_MAX_MODELS = 1000
_MAX_PRINCIPALS = 1000
"""Beside the file's names of now, those it had before keep their series."""
_REFRESH_S = 1.0

# vLLM's bounds, so that its dashboards draw ours; the finer ones below a millisecond are for the overhead.
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0,
)  # fmt: skip
ITL_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS = (
    0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0,
)  # fmt: skip
OVERHEAD_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")


def _never_raises(method: Callable[_P, None]) -> Callable[_P, None]:
    @functools.wraps(method)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            _log.exception("a measurement was lost")

    return guarded


class _ModelSeries:
    """The series of one (model, backend)."""

    def __init__(self, files: SeriesFiles, model: str, backend: str) -> None:
        labels = {"model": model, "backend": backend}

        def seconds(name: str, about: str, bounds: tuple[float, ...]) -> HistogramCells:
            return files.histogram(f"llm:{name}_seconds", about, labels, bounds)

        self.ttft = seconds("time_to_first_token", "Received to first content, seconds.", TTFT_BOUNDS)
        self.itl = seconds("inter_token_latency", "Gap between two chunks of content, seconds.", ITL_BOUNDS)
        self.e2e = seconds("e2e_request_latency", "Received to end of the answer, seconds.", REQUEST_BOUNDS)
        self.queue = seconds("request_queue_time", "Wait for a completion slot, seconds.", REQUEST_BOUNDS)
        self.prompt = files.counter("llm:prompt_tokens_total", "Prompt tokens of whole answers.", labels)
        self.generated = files.counter("llm:generation_tokens_total", "Tokens generated.", labels)
        self.failed = files.counter("llm:requests_failed_total", "Admitted, ended in an error.", labels)
        self.finished = {
            reason: files.counter(
                "llm:request_success_total",
                "Requests answered whole, by the first choice's finish reason.",
                labels | {"finished_reason": reason},
            )
            for reason in (*sorted(_REASONS), "other")
        }


class RequestTimer:
    """The measurements of one completion. Cheap per token; everything is booked once, at the end.

    `now` is `time.monotonic()`; None reads it. Exactly one of `finish`, `cancel`, `fail` counts; later calls
    do nothing. Nothing here raises.
    """

    __slots__ = ("_done", "_gap_sum", "_gaps", "_last", "_metrics", "_record", "_series", "phase")

    def __init__(self, metrics: Metrics, series: _ModelSeries, record: RequestRecord) -> None:
        self._metrics = metrics
        self._series = series
        self._record = record
        self._gaps: list[int] | None = None
        self._gap_sum = 0.0
        self._last = 0.0
        self._done = False
        self.phase: Phase = "queued"

    def admitted(self, queue_ms: float) -> None:
        """The request holds a slot, after waiting `queue_ms` for it."""
        self.phase = "prefill"
        self._record.queue_s = queue_ms / 1000.0

    def first_token(self, now: float | None = None) -> None:
        """The first content is about to be written. A second call is a gap."""
        if now is None:
            now = time.monotonic()
        if self.phase == "decode":
            self.token_gap(now)
            return
        self.phase = "decode"
        self._last = now
        self._record.ttft_s = now - self._record.received_at

    def token_gap(self, now: float | None = None) -> None:
        """A later chunk of content is about to be written."""
        if now is None:
            now = time.monotonic()
        gaps = self._gaps
        if gaps is None:
            gaps = self._gaps = [0] * (len(ITL_BOUNDS) + 1)
        gap = now - self._last
        self._last = now
        gaps[bisect_left(ITL_BOUNDS, gap)] += 1
        self._gap_sum += gap

    def finish(
        self, reason: str, *, prompt_tokens: int, completion_tokens: int, now: float | None = None
    ) -> None:
        """The request was answered whole; `reason` is the first choice's finish reason."""
        if self._done:
            return
        record = self._record
        record.finish_reason = reason
        record.prompt_tokens = prompt_tokens
        record.completion_tokens = completion_tokens
        self._end("finish", time.monotonic() if now is None else now)

    def cancel(self, *, completion_tokens: int | None = None, now: float | None = None) -> None:
        """The client left; the phase follows from what was called before."""
        if self._done:
            return
        self._record.cancelled_phase = self.phase
        if completion_tokens is not None:
            self._record.completion_tokens = completion_tokens
        self._end("cancel", time.monotonic() if now is None else now)

    def fail(self, *, now: float | None = None) -> None:
        """The request was refused, or ended with an error of ours or the engine's."""
        if not self._done:
            self._end("fail", time.monotonic() if now is None else now)

    @_never_raises
    def _end(self, how: str, now: float) -> None:
        self._done = True
        record, series = self._record, self._series
        if record.queue_s is not None:
            series.queue.observe(record.queue_s)
        if record.ttft_s is not None:
            series.ttft.observe(record.ttft_s)
        if self._gaps is not None:
            series.itl.observe_many(self._gaps, self._gap_sum)
        if record.completion_tokens:
            series.generated.add(record.completion_tokens)
        if how == "finish":
            series.e2e.observe(now - record.received_at)
            series.prompt.add(record.prompt_tokens or 0)
            finished = series.finished
            finished.get(record.finish_reason or "", finished["other"]).add(1)
        elif how == "cancel":
            self._metrics.cancelled[self.phase].add(1)
        elif self.phase != "queued":  # a refusal at the door is counted as a rejection
            series.failed.add(1)


class Metrics:
    """All series of this process, and the scrape of all processes of the instance."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        known_models: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory` is the instance's own (`config.metrics_dir`), empty when the instance starts; None
        makes a temporary one for this process alone. `known_models` gives the card ids that may become label
        values (asked at most once a second, and only for an id not seen before); every other model counts as
        `unknown`."""
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="llm-metrics-"))
            self._cleanup = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self.directory = directory
        self._files = SeriesFiles(directory)
        self._known_models = known_models
        self._clock = clock
        self._known: frozenset[str] = frozenset()
        self._asked_at = float("-inf")
        self._models: dict[tuple[str, str], _ModelSeries] = {}
        self._http: dict[tuple[str, str, int], Cell] = {}
        self._rejected: dict[str, Cell] = {}
        self._fallbacks: dict[tuple[str, str, str], Cell] = {}
        self._costs: dict[tuple[str, str], Cell] = {}
        self._callers: dict[str, tuple[Cell, Cell]] = {}
        files = self._files
        self._running = files.gauge("llm:num_requests_running", "Completions that hold a slot.", {})
        self._waiting = files.gauge("llm:num_requests_waiting", "Completions that wait for a slot.", {})
        self._overhead = files.histogram(
            "llm:request_overhead_seconds",
            "Our own share of a completion: neither client, queue nor engine, seconds.",
            {},
            OVERHEAD_BOUNDS,
        )
        self._redis_failures = files.counter(
            "llm:redis_failures_total", "Times that Redis could not be asked, or did not answer in time.", {}
        )
        self.cancelled = {
            phase: files.counter(
                "llm:requests_cancelled_total", "Completions whose client left, by phase.", {"phase": phase}
            )
            for phase in PHASES
        }

    def timer(self, record: RequestRecord, *, model: str, backend: str) -> RequestTimer:
        """Begin to measure a completion; notes model and backend in the record."""
        record.model = model
        record.backend = backend
        return RequestTimer(self, self._series(model, backend), record)

    @_never_raises
    def occupancy(self, running: int, waiting: int) -> None:
        """Completions that run and wait in this process (`Admission` calls it)."""
        self._running.set(running)
        self._waiting.set(waiting)

    @_never_raises
    def overhead(self, seconds: float) -> None:
        """Our own share of one completion, when its headers go out."""
        self._overhead.observe(seconds)

    @_never_raises
    def request_ended(self, record: RequestRecord) -> None:
        """Count one HTTP request (the middleware calls it), and its refusal if it was one."""
        method = record.method if record.method in _METHODS else "OTHER"
        key = (record.route or UNKNOWN, method, record.status or 499)
        cell = self._http.get(key)
        if cell is None:
            route, _, status = key
            labels = {"route": route, "method": method, "status": str(status)}
            cell = self._files.counter("llm:http_requests_total", "HTTP requests.", labels)
            self._http[key] = cell
        cell.add(1)
        if record.error_code is not None and record.status in _REFUSALS:
            self._rejection(record.error_code).add(1)
        if record.caller is not None and record.caller.is_named:
            self._caller(record.caller)[0].add(1)

    @_never_raises
    def fallback(self, *, model: str, backend: str, reason: FallbackReason) -> None:
        """A request went on from this model to another one."""
        key = (*self._labels(model, backend), reason)
        cell = self._fallbacks.get(key)
        if cell is None:
            labels = {"model": key[0], "backend": key[1], "reason": reason}
            cell = self._fallbacks[key] = self._files.counter(
                "llm:fallbacks_total", "Requests that went on from this model to another, by reason.", labels
            )
        cell.add(1)

    @_never_raises
    def cost(self, usd: float, *, model: str, backend: str) -> None:
        """What an answer cost."""
        key = self._labels(model, backend)
        cell = self._costs.get(key)
        if cell is None:
            labels = {"model": key[0], "backend": key[1]}
            cell = self._costs[key] = self._files.counter(
                "llm:cost_usd_total", "What answers cost, US dollars.", labels
            )
        cell.add(usd)

    @_never_raises
    def redis_failed(self) -> None:
        """Redis could not be used."""
        self._redis_failures.add(1)

    @_never_raises
    def principal_cost(self, principal: Principal, usd: float) -> None:
        """What a named principal was answered for (`Budgets` calls it)."""
        if principal.is_named:
            self._caller(principal)[1].add(usd)

    def render(self, extra: Iterable[bytes] = ()) -> bytes:
        """Prometheus text of every gateway worker of this host, with the runners' own texts merged in. Reads
        files (a few ms): call it in a thread."""
        return merge_texts((self._files.render(), *extra))

    def close(self) -> None:
        """Close the files. The counters of this process stay visible to the other workers' scrapes."""
        self._files.close()

    def _rejection(self, reason: str) -> Cell:
        cell = self._rejected.get(reason)
        if cell is None:
            cell = self._rejected[reason] = self._files.counter(
                "llm:rejections_total", "Requests refused, by error code.", {"reason": reason}
            )
        return cell

    def _series(self, model: str, backend: str) -> _ModelSeries:
        found = self._models.get((model, backend))
        if found is not None:
            return found
        key = self._labels(model, backend)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = _ModelSeries(self._files, *key)
        return found

    def _labels(self, model: str, backend: str) -> tuple[str, str]:
        return (
            model if self._is_known(model) else UNKNOWN,
            backend if backend in _KINDS else UNKNOWN,
        )

    def _caller(self, principal: Principal) -> tuple[Cell, Cell]:
        """Requests and cost of one named principal; names beyond the bound count as `unknown`."""
        name = principal.name
        found = self._callers.get(name)
        if found is None:
            if len(self._callers) >= _MAX_PRINCIPALS:
                name = UNKNOWN
                if name in self._callers:
                    return self._callers[name]
            labels = {"principal": name}
            found = self._callers[name] = (
                self._files.counter("llm:principal_requests_total", "Requests of a named caller.", labels),
                self._files.counter(
                    "llm:principal_cost_usd_total", "What a named caller's answers cost, US dollars.", labels
                ),
            )
        return found

    def _is_known(self, model: str) -> bool:
        if model not in self._known and self._clock() - self._asked_at >= _REFRESH_S:
            self._asked_at = self._clock()
            try:
                self._known = frozenset(self._known_models())
            except Exception:
                _log.exception("the known models could not be listed")
        return model in self._known and len(self._models) < _MAX_MODELS
