"""Charts as small SVG: what is drawn is data here, ``draw`` turns it into markup.

Our own SVG and not matplotlib: that installs seven packages of 100 MB and takes 1.3 s of CPU to
import, writes its colours into the file, so that dark mode cannot change them, and cannot name a
point. These take colours and fonts from the page's CSS and carry a title on every mark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from markupsafe import Markup

from gatekeeper.reports.timeline import Timeline, draw_timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Chart", "Forest", "Interval", "Lines", "Series", "Stack", "Step", "Waterfall", "draw"]

_WIDTH = 340
_LEFT, _RIGHT, _TOP = 46, 12, 10
_ROW = 30
_PLOT = 150


@dataclass(frozen=True)
class Series:
    """Named points (x label, y, how y reads); ``style`` picks colour, dash and marker together."""

    name: str
    style: int
    points: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True)
class Lines:
    """Levels against an ordered category; the y axis begins at 0, and ends at ``top`` if given."""

    title: str
    alt: str
    x_label: str
    xs: tuple[str, ...]
    series: tuple[Series, ...]
    top: float | None = None


@dataclass(frozen=True)
class Interval:
    """A figure with its bounds; a bound that is None is not known and not drawn."""

    label: str
    value: float
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Forest:
    """Intervals on one axis with named reference lines."""

    title: str
    alt: str
    x_label: str
    rows: tuple[Interval, ...]
    references: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Stack:
    """Parts of a whole as one bar with a legend; parts that are 0 stay in the legend."""

    title: str
    alt: str
    parts: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True)
class Step:
    """One bar of a waterfall. ``total`` bars stand on zero, others add to the running sum."""

    label: str
    value: float
    low: float | None
    high: float | None
    text: str
    total: bool = False


@dataclass(frozen=True)
class Waterfall:
    """Signed steps that add up to their total."""

    title: str
    alt: str
    x_label: str
    steps: tuple[Step, ...]


Chart = Lines | Forest | Stack | Waterfall | Timeline


def draw(chart: Chart) -> Markup:
    """Return the chart as one ``<svg>`` element, a timeline as a list of bars."""
    if isinstance(chart, Timeline):
        return draw_timeline(chart)
    if isinstance(chart, Lines):
        return _lines(chart)
    if isinstance(chart, Forest):
        return _forest(chart)
    if isinstance(chart, Stack):
        return _stack(chart)
    return _waterfall(chart)


def _svg(
    chart: Lines | Forest | Stack | Waterfall, height: float, body: Iterable[Markup]
) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _n(height), chart.alt, Markup("").join(body)
    )


def _n(value: float) -> str:
    """Coordinate with two digits: the same chart is the same bytes."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>').format(
        _n(x), _n(y), kind, anchor, text
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        _n(x1), _n(y1), _n(x2), _n(y2), kind
    )


def _bar(box: tuple[float, float, float, float], kind: str, title: str) -> Markup:
    """Rectangle of x, y, width and height."""
    x, y, width, height = box
    return Markup(
        '<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>'
    ).format(_n(x), _n(y), _n(max(width, 0.0)), _n(height), kind, title)


def _marker(x: float, y: float, style: int, title: str) -> Markup:
    """Circle or square, so that arms differ without colour."""
    if style % 2:
        shape = Markup('<rect x="{}" y="{}" width="8" height="8" class="mark s{}">').format(
            _n(x - 4), _n(y - 4), style
        )
        return shape + Markup("<title>{}</title></rect>").format(title)
    shape = Markup('<circle cx="{}" cy="{}" r="4.5" class="mark s{}">').format(_n(x), _n(y), style)
    return shape + Markup("<title>{}</title></circle>").format(title)


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """About ``wanted`` round numbers inside [low, high]."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next((m * power for m in (1, 2, 5) if span / (m * power) <= wanted), 10 * power)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{Decimal(f'{value:.6g}'):f}".replace("-", "−")


def _lines(chart: Lines) -> Markup:
    values = [y for series in chart.series for _, y, _ in series.points]
    top = chart.top or max([*values, 0.0]) * 1.12 or 1.0
    bottom = _TOP + _PLOT
    width = _WIDTH - _LEFT - _RIGHT

    def x_of(label: str) -> float:
        return _LEFT + width * (chart.xs.index(label) + 0.5) / len(chart.xs)

    def y_of(value: float) -> float:
        return bottom - _PLOT * value / top

    body = []
    for tick in ticks(0.0, top):
        body.append(_line(_LEFT, y_of(tick), _WIDTH - _RIGHT, y_of(tick), "grid"))
        body.append(_text(_LEFT - 6, y_of(tick) + 4, _tick(tick), "tick", "end"))
    body.extend(_text(x_of(x), bottom + 16, x, "tick", "middle") for x in chart.xs)
    body.append(_text(_LEFT + width / 2, bottom + 33, chart.x_label, "axis", "middle"))
    for series in chart.series:
        points = [(x_of(x), y_of(y), text) for x, y, text in series.points]
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y, _ in points)
        body.append(Markup('<polyline points="{}" class="line s{}"/>').format(path, series.style))
        body.extend(_marker(x, y, series.style, f"{series.name}: {text}") for x, y, text in points)
    legend_y = bottom + 54
    legend, height = _legend([(s.name, s.style) for s in chart.series], legend_y)
    return _svg(chart, height, [*body, *legend])


def _legend(entries: Sequence[tuple[str, int]], y: float) -> tuple[list[Markup], float]:
    """Entries in as few lines as fit, and the height used so far."""
    body: list[Markup] = []
    x = 6.0
    for name, style in entries:
        room = 22 + 6.4 * len(name)
        if x > 6 and x + room > _WIDTH:  # noqa: PLR2004 - the margin above
            x, y = 6.0, y + 18
        body.append(_marker(x + 6, y - 4, style, name))
        body.append(_text(x + 16, y, name, "legend"))
        x += room
    return body, y + 8


def _scale(
    values: Sequence[float], left: float, right: float
) -> tuple[float, float, Callable[[float], float]]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.08 or max(abs(high), 1.0) * 0.1
    low, high = low - pad, high + pad

    def x_of(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    return low, high, x_of


def _axis(
    scale: tuple[float, float, Callable[[float], float]],
    bands: Sequence[tuple[float, float]],
    bottom: float,
    label: str,
) -> list[Markup]:
    """Ticks, with grid lines only in the bands where marks are: labels stay clear of them."""
    low, high, x_of = scale
    body: list[Markup] = []
    for tick in ticks(low, high):
        body.extend(_line(x_of(tick), top, x_of(tick), end, "grid") for top, end in bands)
        body.append(_text(x_of(tick), bottom + 14, _tick(tick), "tick", "middle"))
    body.append(_text(_WIDTH / 2, bottom + 31, label, "axis", "middle"))
    return body


def _whisker(interval: Interval | Step, x_of: Callable[[float], float], y: float) -> list[Markup]:
    body = []
    ends = [e for e in (interval.low, interval.high) if e is not None]
    reach = [x_of(e) for e in (*ends, interval.value)]
    if ends:
        body.append(_line(min(reach), y, max(reach), y, "whisker"))
        body.extend(_line(x_of(e), y - 4, x_of(e), y + 4, "whisker") for e in ends)
    return body


def _forest(chart: Forest) -> Markup:
    known = [v for r in chart.rows for v in (r.value, r.low, r.high) if v is not None]
    scale = _scale([*known, *(x for _, x in chart.references)], 14, _WIDTH - 14)
    x_of = scale[2]
    head = _TOP + 12
    row = _ROW + 8
    centres = [head + row * index + 27 for index in range(len(chart.rows))]
    bands = [(y - 9, y + 9) for y in centres]
    bottom = head + row * len(chart.rows)
    body = _axis(scale, bands, bottom, chart.x_label)
    for name, at in chart.references:
        x = x_of(at)
        body.extend(_line(x, top, x, end, "reference") for top, end in bands)
        anchor = "start" if x < _WIDTH / 3 else "end" if x > _WIDTH / 1.5 else "middle"
        body.append(_text(x, head - 8, name, "tick", anchor))
    for y, interval in zip(centres, chart.rows, strict=True):
        body.append(_text(2, y - 13, interval.label, "legend"))
        body.append(_text(_WIDTH - 2, y - 13, interval.text, "legend", "end"))
        body.extend(_whisker(interval, x_of, y))
        body.append(_marker(x_of(interval.value), y, 1, f"{interval.label}: {interval.text}"))
    return _svg(chart, bottom + 38, body)


def _stack(chart: Stack) -> Markup:
    whole = sum(value for _, value, _ in chart.parts) or 1.0
    body, x = [], 0.0
    for index, (name, value, text) in enumerate(chart.parts):
        width = _WIDTH * value / whole
        if value > 0:
            body.append(_bar((x, 4, width, 26), f"fill f{index}", f"{name}: {text}"))
        x += width
    y = 50.0
    for index, (name, _, text) in enumerate(chart.parts):
        body.append(_bar((2, y - 10, 11, 11), f"fill f{index}", name))
        body.append(_text(20, y, name, "legend"))
        body.append(_text(_WIDTH - 2, y, text, "legend", "end"))
        y += 19
    return _svg(chart, y - 8, body)


def _waterfall(chart: Waterfall) -> Markup:
    placed, running = [], 0.0
    for step in chart.steps:
        base = 0.0 if step.total else running
        placed.append((step, base, base + step.value))
        running += 0.0 if step.total else step.value
    shifted = [
        Interval(
            step.label,
            end,
            None if step.low is None else base + step.low,
            None if step.high is None else base + step.high,
            step.text,
        )
        for step, base, end in placed
    ]
    known = [
        v
        for (_, base, end), s in zip(placed, shifted, strict=True)
        for v in (base, end, s.low, s.high)
        if v is not None
    ]
    scale = _scale([*known, 0.0], 8, _WIDTH - 8)
    x_of = scale[2]
    row = _ROW + 8
    bottom = _TOP + row * len(chart.steps)
    bands = [(_TOP + row * i + 15, _TOP + row * i + 33) for i in range(len(chart.steps))]
    body = _axis(scale, bands, bottom, chart.x_label)
    body.extend(_line(x_of(0.0), top, x_of(0.0), end, "reference") for top, end in bands)
    for index, ((step, base, end), reach) in enumerate(zip(placed, shifted, strict=True)):
        y = _TOP + row * index
        kind = "total" if step.total else "gain" if step.value >= 0 else "cost"
        left, right = sorted((x_of(base), x_of(end)))
        body.append(_text(8, y + 12, step.label, "legend"))
        body.append(_text(_WIDTH - 8, y + 12, step.text, "legend", "end"))
        body.append(
            _bar((left, y + 17, max(right - left, 1.5), 14), kind, f"{step.label}: {step.text}")
        )
        body.extend(_whisker(reach, x_of, y + 24))
    return _svg(chart, bottom + 38, body)
