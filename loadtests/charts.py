"""The charts of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.findings import Findings
from loadtests.measures import Window, ended_at, errors_by_kind, in_flight, is_good, tokens_per_s
from loadtests.record import Record
from loadtests.stats import binned, cumulative, percentile
from loadtests.svg import Chart, Series
from loadtests.workload import Bounds

BINS = 40
"""Along the time axis, at most; a bin is a second or more."""
MAX_DOTS = 1500
LEAST_MS = 0.01
"""Where shorter times are drawn: a logarithmic axis has no 0."""
TOGETHER = f"Pieces that arrived together, with one read, stand at {LEAST_MS:g} ms."


@dataclass(frozen=True, slots=True)
class _Axis:
    """Time from the begin of the run, in bins."""

    begin: float
    end: float
    width: float

    @property
    def range(self) -> tuple[float, float]:
        return 0.0, self.end - self.begin

    def middles(self) -> list[float]:
        return [start + self.width / 2 for start in self.starts()]

    def starts(self) -> list[float]:
        count = len(binned([], lambda _: 0.0, begin=self.begin, end=self.end, width=self.width))
        return [i * self.width for i in range(count)]

    def windows(self) -> list[Window]:
        return [
            Window(self.begin + start, min(self.begin + start + self.width, self.end))
            for start in self.starts()
        ]


def charts(found: Findings) -> list[Chart]:
    """In the order of the page."""
    begin, end = found.begin, found.window.end
    axis = _Axis(begin, end, _bin_width(end - begin))
    return [
        _throughput_against_latency(found),
        _over_time(found, axis, "TTFT", lambda r: [] if r.ttft is None else [(r.start + r.ttft, r.ttft)]),
        _over_time(
            found,
            axis,
            "ITL",
            lambda r: list(zip(r.piece_times(), [0.0, *r.gaps], strict=False))[1:],
            note=TOGETHER,
        ),
        _distribution(found),
        *_load(found, axis),
        _goodput(found, axis),
        _errors(found, axis),
    ]


def _bin_width(seconds: float) -> float:
    return next(
        (float(width) for width in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600) if seconds / width <= BINS),
        seconds / BINS,
    )


def _throughput_against_latency(found: Findings) -> Chart:
    """A point per level of a ramp; else one per part of the time."""
    chart = Chart(
        "Throughput against latency",
        "tokens per second of the whole service",
        "time, ms",
        log_y=True,
        y_from_zero=False,
    )
    parts = found.parts
    is_ramp = bool(found.run.levels)
    highest = max((part.tokens_per_s for part in parts), default=0.0)
    chart.x_range = (0.0, 1.05 * highest) if highest else None
    chart.note = (
        "A point per level, with its load."
        if is_ramp
        else f"A point per {parts[0].window.seconds:.0f} s of the run."
    )
    for colour, (name, of) in enumerate((("TTFT", "ttft"), ("ITL", "itl"))):
        for share, kind in (("p50", "line"), ("p99", "line")):
            rows = [
                (part.tokens_per_s, max(getattr(part.times[of], share) * 1000, LEAST_MS), part.label)
                for part in parts
                if of in part.times and part.tokens_per_s > 0
            ]
            labels = [label for *_, label in rows] if is_ramp and share == "p50" else []
            chart.series.append(
                Series(
                    f"{name} {share}",
                    [(x, y) for x, y, _ in rows],
                    kind="line" if is_ramp and kind == "line" else "points",
                    labels=labels,
                    colour=colour * 2 + (share == "p99"),
                )
            )
    return chart


def _over_time(
    found: Findings,
    axis: _Axis,
    name: str,
    times: Callable[[Record], list[tuple[float, float]]],
    note: str = "",
) -> Chart:
    """Every value (thinned) as a dot, with the percentiles of each bin."""
    points = [(at - axis.begin, value) for record in found.run.records for at, value in times(record)]
    bins = binned(points, lambda point: point[0], begin=0.0, end=axis.range[1], width=axis.width)
    dots = points[:: max(1, len(points) // MAX_DOTS)]
    chart = Chart(
        f"{name} over time",
        "seconds from the begin",
        f"{name}, ms",
        log_y=True,
        y_from_zero=False,
        x_range=axis.range,
        note=note,
    )
    lines: dict[str, list[tuple[float, float]]] = {"p50": [], "p90": [], "p99": []}
    for middle, values in zip(axis.middles(), bins, strict=True):
        for share, line in zip((0.5, 0.9, 0.99), lines.values(), strict=True):
            if (value := percentile((v for _, v in values), share)) is not None:
                line.append((middle, max(value * 1000, LEAST_MS)))
    chart.series.append(Series("each", _in_ms(dots), kind="points", colour=6))
    chart.series += [Series(share, line, colour=number) for number, (share, line) in enumerate(lines.items())]
    return chart


def _in_ms(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(at, max(value * 1000, LEAST_MS)) for at, value in points]


def _distribution(found: Findings) -> Chart:
    chart = Chart(
        "Distribution of TTFT and ITL",
        "ms",
        "share that is not above",
        log_x=True,
        y_from_zero=True,
        note=TOGETHER,
    )
    ttft = [record.ttft for record in found.counted if record.ttft is not None]
    gaps = [gap for record in found.counted for gap in record.gaps]
    chart.series = [
        Series("TTFT", [(max(value * 1000, LEAST_MS), share) for value, share in cumulative(ttft)], colour=0),
        Series("ITL", [(max(value * 1000, LEAST_MS), share) for value, share in cumulative(gaps)], colour=2),
    ]
    return chart


def _load(found: Findings, axis: _Axis) -> list[Chart]:
    """Tokens per second, and how many requests were under way in the middle of each bin."""
    records, middles, windows = found.run.records, axis.middles(), axis.windows()
    tokens, running = [], []
    for middle, window in zip(middles, windows, strict=True):
        alive = [r for r in records if r.start < window.end and ended_at(r) >= window.begin]
        tokens.append((middle, tokens_per_s(alive, window)))
        running.append((middle, float(in_flight(alive, window.begin + window.seconds / 2))))
    x_label = "seconds from the begin"
    return [
        Chart("Throughput", x_label, "tokens/s", [Series("", tokens)], x_range=axis.range),
        Chart("Requests in flight", x_label, "requests", [Series("", running, colour=2)], x_range=axis.range),
    ]


def _goodput(found: Findings, axis: _Axis) -> Chart:
    """Answers by whether they kept the bounds, by the time they ended."""
    good, slow = [], []
    bins = binned(found.run.records, ended_at, begin=axis.begin, end=axis.end, width=axis.width)
    for start, window, records in zip(axis.starts(), axis.windows(), bins, strict=True):
        kept = sum(is_good(record, found.workload.bounds) for record in records)
        answered = sum(record.outcome == "ok" for record in records)
        good.append((start, kept / window.seconds))
        slow.append((start, (answered - kept) / window.seconds))
    has_bounds = found.workload.bounds != Bounds()
    return Chart(
        f"Goodput: answers with {found.workload.bounds.text}" if has_bounds else "Answers",
        "seconds from the begin",
        "answers/s",
        [
            Series("within the bounds" if has_bounds else "", good, kind="bars", colour=1),
            *([Series("answered, too slow", slow, kind="bars", colour=3)] if has_bounds else []),
        ],
        x_range=axis.range,
        bar_width=axis.width,
    )


def _errors(found: Findings, axis: _Axis) -> Chart:
    records = [record for record in found.run.records if record.error is not None]
    bins = binned(records, ended_at, begin=axis.begin, end=axis.end, width=axis.width)
    kinds = [(outcome, kind) for outcome, kind, *_ in errors_by_kind(records)]
    return Chart(
        "Failures and refusals by kind",
        "seconds from the begin",
        f"requests per {axis.width:g} s",
        [
            Series(
                f"{kind} ({outcome})",
                [
                    (start, float(sum((r.outcome, r.error) == (outcome, kind) for r in records_of)))
                    for start, records_of in zip(axis.starts(), bins, strict=True)
                ],
                kind="bars",
                colour=number + 3,
            )
            for number, (outcome, kind) in enumerate(kinds[:6])
        ],
        x_range=axis.range,
        bar_width=axis.width,
        nothing="there were none",
    )
