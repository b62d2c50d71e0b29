"""A route's report on a terminal: the same layout, with intervals drawn as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group as Lines
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from gatekeeper.reports.charts import Forest
from gatekeeper.reports.route_report_figures import (
    Charts,
    Facts,
    Figure,
    Group,
    Items,
    Mark,
    Paragraph,
    Quote,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from gatekeeper.reports.charts import Interval
    from gatekeeper.reports.route_report_figures import Block, Line, Report

__all__ = ["render_terminal"]

_TONE = {"good": "bold green", "bad": "bold red", "warn": "bold yellow", "plain": "bold"}
_BAR = 36
_THIN = "\u202f"  # stands between thousands, and Python calls it unprintable
_FEW = 3
_SLACK = 1.3


def render_terminal(report: Report, *, width: int) -> RenderableType:
    """Terminal report, at most ``width`` columns wide."""
    answer, _, clause = report.headline.partition(": ")
    style = _TONE["warn" if report.tone == "plain" else report.tone]
    title = _words(("bold", report.subject), ("", "  "), (style, answer), ("", f": {clause}"))
    parts: list[RenderableType] = [title, _text(report.explanation), Text()]
    parts.append(_facts(report.facts))
    for section in report.sections:
        parts += [Text(), Text(section.title, style="bold underline")]
        parts += [_block(block, width) for block in section.blocks]
    if report.unclaimed:
        count = len(report.unclaimed)
        warning = f"† {count} figures have no claim that reproduces them: gatekeeper claims verify"
        parts += [Text(), Text(warning, style="bold red")]
    closing = (
        f"{len(report.claims)} of {report.known_claims} claims are cited; --html links each figure "
        "to its own, --json prints them all. gatekeeper claims verify recomputes them."
    )
    parts += [Text(), Text(closing, style="dim")]
    return Padding(Lines(*parts), (0, 1))


def _words(*styled: tuple[str, str]) -> Text:
    """Text of (style, words) pairs; foreign words cannot steer the terminal."""
    found = Text()
    for style, words in styled:
        shown = (c if c.isprintable() or c == _THIN else ascii(c)[1:-1] for c in words)
        found.append("".join(shown), style=style)
    return found


def _text(content: Line, style: str = "") -> Text:
    pieces = []
    for piece in content:
        if isinstance(piece, Mark):
            pieces.append((_TONE[piece.tone], piece.text))
        elif isinstance(piece, Figure):
            pieces.append((style, piece.text if piece.claim else f"{piece.text}†"))
        else:
            pieces.append((style, piece.text if isinstance(piece, Quote) else piece))
    return _words(*pieces)


def _facts(facts: Facts) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, content in facts.rows:
        grid.add_row(_words(("", name)), _text(content))
    return grid


def _block(block: Block, width: int) -> RenderableType:
    if isinstance(block, Group):
        head = _words(("bold", block.title), ("", "  "), (_TONE[block.mark.tone], block.mark.text))
        inner = [_block(b, width - 4) for b in block.blocks]
        return Lines(Text(), head, Padding(Lines(*inner), (0, 0, 0, 2)))
    if isinstance(block, Facts):
        return _facts(block)
    if isinstance(block, Paragraph):
        return _text(block.content, "dim" if block.muted else "")
    if isinstance(block, Items):
        grid = Grid.grid(padding=(0, 1))
        for item in block.items:
            grid.add_row(Text("·", style="dim"), _text(item))
        return grid
    if isinstance(block, Table):
        return _table(block, width)
    return _charts(block, width)


def _table(table: Table, width: int) -> RenderableType:
    """Columns side by side, or under one another where they would not fit."""
    cells = [[_text(cell) for cell in row] for row in table.rows]
    widest = [max(len(c.plain) for c in column) for column in zip(*cells, strict=True)]
    heads = [max(map(len, name.split()), default=0) for name in table.columns]
    room = sum(max(pair) + 2 for pair in zip(widest, heads, strict=True))
    if table.numeric and room > _SLACK * width and len(table.columns) > _FEW:
        return _stacked(table, cells)
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for index, name in enumerate(table.columns):
        right = table.numeric and index > 0
        grid.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        grid.add_row(*row)
    return Lines(_words(("italic", table.caption)), grid)


def _stacked(table: Table, cells: Sequence[Sequence[Text]]) -> RenderableType:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in cells:
        grid.add_row(Text(row[0].plain, style="bold not dim"), Text())
        for name, cell in zip(table.columns[1:], row[1:], strict=True):
            grid.add_row(Text(f"  {name}"), cell)
    return Lines(_words(("italic", table.caption)), grid)


def _charts(charts: Charts, width: int) -> RenderableType:
    """Only intervals: levels and curves read as well in the tables beside them."""
    drawn: list[RenderableType] = []
    for chart in charts.charts:
        if isinstance(chart, Forest):
            drawn.append(_words(("italic", f"{chart.title}  ({chart.x_label})")))
            drawn += [_interval(row, chart, width) for row in chart.rows]
    return Lines(*drawn)


def _interval(row: Interval, chart: Forest, width: int) -> Text:
    label_room = max(len(r.label) for r in chart.rows)
    bar = max(12, min(_BAR, width - label_room - 28))
    known = [v for r in chart.rows for v in (r.value, r.low, r.high) if v is not None]
    points = [*known, *(at for _, at in chart.references)]
    low, high = min(points), max(points)
    span = (high - low) or 1.0

    def cell(value: float) -> int:
        return min(bar - 1, max(0, round((bar - 1) * (value - low) / span)))

    marks = [" "] * bar
    for _, at in chart.references:
        marks[cell(at)] = "┊"
    if row.low is not None and row.high is not None:
        for index in range(cell(row.low), cell(row.high) + 1):
            marks[index] = "─"
        marks[cell(row.low)], marks[cell(row.high)] = "├", "┤"
    marks[cell(row.value)] = "●"
    label = f"  {row.label.ljust(label_room)}  "
    return _words(("", label), ("cyan", "".join(marks)), ("", f"  {row.text}"))
