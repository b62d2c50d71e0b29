"""Spans as bars on one time axis, for a page: text as text, so that it wraps on a narrow screen."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

__all__ = ["Bar", "Timeline", "draw_timeline"]

_UNITS = 1000
_DEEPEST = 8
_THINNEST = 400


@dataclass(frozen=True)
class Bar:
    """One span or phase; times are shares of the axis, from 0 to 1.

    ``marked`` says whether the critical path runs through it, ``on_path`` where. A ``container`` is
    drawn thin: its time is that of the bars below it. ``estimated`` bars have a broken outline.
    """

    label: str
    kind: str
    text: str
    depth: int
    start: float
    end: float
    on_path: tuple[tuple[float, float], ...]
    marked: bool
    container: bool
    estimated: bool = False

    @property
    def style(self) -> str:
        """CSS classes of its colour."""
        return f"k-{self.kind}" + (" est" if self.estimated else "")

    @property
    def meaning(self) -> str:
        """How the legend names it."""
        return self.kind.replace("_", " ") + (", estimated" if self.estimated else "")


@dataclass(frozen=True)
class Timeline:
    """Bars in tree order. ``end`` is how the end of the axis reads; ``left_out`` counts the rest."""

    title: str
    alt: str
    end: str
    bars: tuple[Bar, ...]
    left_out: int = 0


def draw_timeline(chart: Timeline) -> Markup:
    """Return the bars as a list with a legend of their kinds."""
    rows = Markup("").join(_row(bar) for bar in chart.bars)
    kinds = {bar.style: bar.meaning for bar in chart.bars}
    legend = Markup("").join(
        Markup('<li><svg viewBox="0 0 10 10" aria-hidden="true">{}</svg>{}</li>').format(
            _rect((0, 1), style, (0, 10), 10), meaning
        )
        for style, meaning in kinds.items()
    )
    rest = Markup('<p class="muted">{} shorter bars beside the path are not drawn.</p>').format(
        chart.left_out
    )
    return Markup(
        '<div class="axis"><span>● on the critical path</span><span class="ends"><span>0</span>'
        "<span>{}</span></span></div>"
        '<ol class="timeline" aria-label="{}">{}</ol><ul class="kinds">{}</ul>{}'
    ).format(chart.end, chart.alt, rows, legend, rest if chart.left_out else "")


def _row(bar: Bar) -> Markup:
    band = (3, 4) if bar.container else (0, 10)
    parts = [_rect((bar.start, bar.end), f"{bar.style} off", band, _UNITS)]
    parts += [_rect(stretch, bar.style, band, _UNITS) for stretch in bar.on_path]
    mark = Markup('<b title="on the critical path">●</b> ') if bar.marked else ""
    return Markup(
        '<li class="d{}{}"><span class="label">{}{}</span><span class="took">{}</span>'
        '<svg viewBox="0 0 {} 10" preserveAspectRatio="none" aria-hidden="true">{}</svg></li>'
    ).format(
        min(bar.depth, _DEEPEST),
        " on" if bar.marked else "",
        mark,
        bar.label,
        bar.text,
        _UNITS,
        Markup("").join(parts),
    )


def _rect(stretch: tuple[float, float], kind: str, band: tuple[int, int], units: int) -> Markup:
    """Rectangle over shares of the axis, never too thin to be seen; ``band`` is top and height."""
    start, end = (min(max(share, 0.0), 1.0) for share in stretch)
    least = 1 / _THINNEST
    left, width = min(start, 1 - least) * units, max(end - start, least) * units
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"/>').format(
        f"{left:.2f}", band[0], f"{width:.2f}", band[1], kind
    )
