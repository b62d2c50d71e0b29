"""A route's report as Markdown, for a merge request or a wiki page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
    from collections.abc import Mapping

    from gatekeeper.reports.route_report_figures import Block, Line, Report

__all__ = ["render_markdown"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~!])")


def render_markdown(report: Report) -> str:
    """Return the report with figures numbered by their claims, listed at the end."""
    numbers = {str(claim["id"]): f"c{i}" for i, claim in enumerate(report.claims, start=1)}
    parts = [
        f"# {_plain(report.subject)}: {_plain(report.headline)}",
        _line(report.explanation, numbers),
        _block(report.facts, numbers, 3),
    ]
    if report.unclaimed:
        parts.append(f"**† {len(report.unclaimed)} figures have no claim that reproduces them.**")
    for section in report.sections:
        parts.append(f"## {_plain(section.title)}")
        parts += [_block(block, numbers, 3) for block in section.blocks]
    parts.append("## Claims")
    parts.append(
        "\n".join(
            f"- {number}: {_plain(str(claim['id']))} = {_plain(str(claim['equation']))}, "
            f"{_value(claim['value'])} {_plain(str(claim['unit']))}, {_plain(str(claim['status']))}"
            for number, claim in zip(numbers.values(), report.claims, strict=True)
        )
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _value(value: object) -> str:
    return "as quoted" if isinstance(value, str) else repr(value)


def _line(content: Line, numbers: Mapping[str, str]) -> str:
    found = []
    for piece in content:
        if isinstance(piece, Figure | Quote):
            note = f" ({numbers[piece.claim]})" if piece.claim else ""
            dagger = "†" if isinstance(piece, Figure) and not piece.claim else ""
            found.append(f"{_plain(piece.text)}{dagger}{note}")
        elif isinstance(piece, Mark):
            found.append(f"**{_plain(piece.text)}**")
        else:
            found.append(_SPECIAL.sub(r"\\\1", piece))
    return " ".join("".join(found).split())


def _block(block: Block, numbers: Mapping[str, str], level: int) -> str:
    if isinstance(block, Group):
        head = f"{'#' * level} {_plain(block.title)}: {_plain(block.mark.text)}"
        return "\n\n".join([head, *(_block(b, numbers, level + 1) for b in block.blocks)])
    if isinstance(block, Facts):
        return "\n".join(f"- {_plain(n)}: {_line(c, numbers)}" for n, c in block.rows)
    if isinstance(block, Items):
        return "\n".join(f"- {_line(item, numbers)}" for item in block.items)
    if isinstance(block, Paragraph):
        return _line(block.content, numbers)
    if isinstance(block, Table):
        rows = [[_line(cell, numbers) for cell in row] for row in block.rows]
        lines = [list(map(_plain, block.columns)), ["---"] * len(block.columns), *rows]
        table = "\n".join(f"| {' | '.join(row)} |" for row in lines)
        return f"{_plain(block.caption)}:\n\n{table}"
    return _charts(block)


def _charts(charts: Charts) -> str:
    return "\n".join(f"- {_plain(chart.alt)}" for chart in charts.charts)
