"""Charts as inline SVG: axes with round ticks, lines, bands, points, steps and bars. No script, no outside resource.

Colours and fonts come from the page's style sheet (classes `c0` … `c6` and `axis`), so that a chart follows its theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 14, 44
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """`kind`: a line through the points, points, a band between two lines (`other`), or bars that stand on the sum of
    the bars before them."""

    name: str
    points: Sequence[Point]
    kind: Literal["line", "points", "band", "bars"] = "line"
    other: Sequence[Point] = ()
    labels: Sequence[str] = ()
    """Beside each point."""
    colour: int | None = None


@dataclass(slots=True)
class Chart:
    """`log_y` needs values above 0; others are left out. `bar_width` is in units of x. `marks` are horizontal lines."""

    title: str
    x_label: str
    y_label: str
    series: list[Series] = field(default_factory=list)
    log_x: bool = False
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    y_from_zero: bool = True
    bar_width: float = 1.0
    marks: list[tuple[float, str]] = field(default_factory=list)
    note: str = ""
    """What has to be said below it."""
    nothing: str = "nothing was measured"
    """What an empty one says."""

    def render(self) -> str:
        """The `<svg>` element. A chart without any point says so."""
        xs, ys = self._values()
        if not xs or not ys:
            return f'<p class="empty">{escape(self.title)}: {escape(self.nothing)}.</p>'
        x = _Scale.over(
            self.x_range or (min(xs), max(xs)),
            (LEFT, WIDTH - RIGHT),
            is_log=self.log_x,
            is_tight=bool(self.x_range),
        )
        low = 0.0 if self.y_from_zero and not self.log_y else min(ys)
        y = _Scale.over((low, max(ys)), (HEIGHT - BOTTOM, TOP), is_log=self.log_y, is_tight=False)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title, quote=True)}">',
            f"<title>{escape(self.title)}</title>",
            *_axes(x, y, self.x_label, self.y_label),
        ]
        for at, text in self.marks:
            if y.holds(at):
                parts.append(f'<path class="mark" d="M{LEFT} {y(at):.1f}H{WIDTH - RIGHT}"/>')
                parts.append(_note(WIDTH - RIGHT - 4, y(at) - 4, text))
        parts += self._bars(x, y)
        for number, series in enumerate(self.series):
            colour = f"c{(number if series.colour is None else series.colour) % 7}"
            parts += _DRAWN[series.kind](series, x, y, colour)
        parts.append("</svg>")
        return "".join(parts) + self._legend()

    def _values(self) -> tuple[list[float], list[float]]:
        points = [point for s in self.series for point in (*s.points, *s.other) if s.kind != "bars"]
        xs, ys = [px for px, _ in points], [py for _, py in points]
        stacked: dict[float, float] = {}
        for series in self.series:
            for px, py in series.points if series.kind == "bars" else ():
                stacked[px] = stacked.get(px, 0.0) + py
                xs += [px, px + self.bar_width]
        ys += [*stacked.values(), *(at for at, _ in self.marks)]
        if self.log_x:
            xs = [px for px in xs if px > 0]
        if self.log_y:
            ys = [py for py in ys if py > 0]
        return xs, ys

    def _bars(self, x: _Scale, y: _Scale) -> list[str]:
        parts, base = [], dict[float, float]()
        for number, series in enumerate(self.series):
            if series.kind != "bars":
                continue
            colour = f"c{(number if series.colour is None else series.colour) % 7}"
            for px, py in series.points:
                if not py or not x.holds(px):
                    continue
                below = base.get(px, 0.0)
                base[px] = below + py
                left, right = x(px) + 0.5, x(min(px + self.bar_width, x.high)) - 0.5
                top, bottom = y(below + py), y(below)
                parts.append(
                    f'<rect class="{colour} bar" x="{left:.1f}" y="{top:.1f}" width="{max(0.5, right - left):.1f}" '
                    f'height="{max(0.5, bottom - top):.1f}"><title>{escape(series.name)}: {py:g}</title></rect>'
                )
        return parts

    def _legend(self) -> str:
        items = "".join(
            f'<li><span class="key c{(n if s.colour is None else s.colour) % 7}"></span>{escape(s.name)}</li>'
            for n, s in enumerate(self.series)
            if s.name
        )
        return f'<ul class="legend">{items}</ul>' if items else ""


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to pixels. A linear scale of one single value is widened; a logarithmic one has at least a decade."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool

    @classmethod
    def over(
        cls, values: tuple[float, float], pixels: tuple[int, int], *, is_log: bool, is_tight: bool
    ) -> _Scale:
        low, high = values
        if is_log:
            low, high = _log_bounds(low, high)
        else:
            if high <= low:
                low, high = (0.0, high * 2) if high > 0 else (low - 1, high + 1)
            if not is_tight:
                step = _step(high - low)
                high = math.ceil(high / step - 1e-9) * step
                low = math.floor(low / step + 1e-9) * step
        return cls(low, high, *pixels, is_log)

    def __call__(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.is_log else value
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self) -> list[float]:
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            factors = (1, 2, 5) if last - first <= 3 else (1,)
            found = [f * 10.0**e for e in range(first, last + 1) for f in factors]
        else:
            step = _step(self.high - self.low)
            first = math.ceil(self.low / step - 1e-9)
            found = [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]


def _log_bounds(low: float, high: float) -> tuple[float, float]:
    """The nearest 1, 2 or 5 times a power of ten outside both, at least a factor of ten apart."""
    below = max(f * 10.0**e for e in range(-9, 13) for f in (1, 2, 5) if f * 10.0**e <= low * 1.0001)
    above = min(f * 10.0**e for e in range(-9, 13) for f in (1, 2, 5) if f * 10.0**e >= high * 0.9999)
    return (below, above) if above / below >= 10 else (below / 2, max(above, below * 5))


def _step(span: float) -> float:
    """A round step that gives four to nine ticks."""
    raw = span / 6
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def number_text(value: float) -> str:
    """A tick: short, without an exponent for what people read as numbers."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.0e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.10g}" if abs(value) >= 1 else f"{value:.4g}"


def _axes(x: _Scale, y: _Scale, x_label: str, y_label: str) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>']
    for tick in y.ticks():
        at = y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number_text(tick)}</text>')
    for tick in x.ticks():
        at = x(tick)
        parts.append(f'<path class="axis" d="M{at:.1f} {bottom}v4"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{number_text(tick)}</text>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    parts.append(
        f'<text class="label" transform="translate(14 {(TOP + bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return parts


def _note(x: float, y: float, text: str) -> str:
    return f'<text class="note" x="{x:.1f}" y="{y:.1f}" text-anchor="end">{escape(text)}</text>'


def _path(points: Sequence[Point], x: _Scale, y: _Scale) -> str:
    return "L".join(f"{x(px):.1f} {y(py):.1f}" for px, py in points)


def _seen(points: Sequence[Point], x: _Scale, y: _Scale) -> list[Point]:
    return [point for point in points if x.holds(point[0]) and (not y.is_log or point[1] > 0)]


def _line(series: Series, x: _Scale, y: _Scale, colour: str) -> list[str]:
    points = _seen(series.points, x, y)
    if len(points) < 2:
        return _points(series, x, y, colour)
    drawn = [f'<path class="{colour} line" d="M{_path(points, x, y)}"/>']
    return drawn + (_points(series, x, y, colour) if series.labels else [])


def _points(series: Series, x: _Scale, y: _Scale, colour: str) -> list[str]:
    parts, radius = [], 4 if len(series.points) < 50 else 2
    for number, (px, py) in enumerate(series.points):
        if not x.holds(px) or (y.is_log and py <= 0):
            continue
        parts.append(f'<circle class="{colour} point" cx="{x(px):.1f}" cy="{y(py):.1f}" r="{radius}"/>')
        if number < len(series.labels):
            parts.append(_note(x(px) - 6, y(py) - 8, series.labels[number]))
    return parts


def _band(series: Series, x: _Scale, y: _Scale, colour: str) -> list[str]:
    above, below = _seen(series.points, x, y), _seen(series.other, x, y)
    if len(above) < 2 or len(below) < 2:
        return []
    return [f'<path class="{colour} band" d="M{_path(above, x, y)}L{_path(below[::-1], x, y)}Z"/>']


def _nothing(_series: Series, _x: _Scale, _y: _Scale, _colour: str) -> list[str]:
    """Bars are drawn together: they stand on one another."""
    return []


_DRAWN = {"line": _line, "points": _points, "band": _band, "bars": _nothing}
