"""A task's spans as bars on one time axis, with the critical path marked."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from gatekeeper.errors import printable
from gatekeeper.reports.segments import path_stretches

if TYPE_CHECKING:
    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.tasks import Task

__all__ = ["KIND_STYLE", "Row", "choose", "marked", "rows", "waterfall"]

KIND_STYLE = {
    "queue": "yellow",
    "prefill": "blue",
    "decode": "magenta",
    "tool": "cyan",
    "verification": "green",
    "persistence": "bright_blue",
    "human_wait": "red",
    "other": "default",
}
"""Terminal colour of each kind."""

_MOST_ROWS = 48
_ESTIMATED = "decode, estimated"
_Intervals = list[tuple[int, int]]


@dataclass(frozen=True)
class Row:
    """One bar: nanoseconds since the task's start; ``on_path`` are its stretches on the path.

    ``estimated`` decode is that of a call which shows no first token: tokens times a typical time.
    """

    label: str
    depth: int
    kind: str
    start_ns: int
    end_ns: int
    on_path: tuple[tuple[int, int], ...]
    container: bool
    estimated: bool = False


def rows(profile: TaskProfile) -> list[Row]:
    """Rows in tree order: one per span, and one per phase below a model call."""
    task = profile.task
    pieces, waited = path_stretches(profile)
    gaps: dict[int | None, _Intervals] = defaultdict(list)
    for gap in waited:
        gaps[gap.work].append((gap.start_ns, gap.end_ns))
    found = []
    for i, depth in _tree(task):
        work = task.works[i]
        start = work.span.start_ns - task.start_ns
        end = (work.span.start_ns if work.end_ns is None else work.end_ns) - task.start_ns
        own = [*pieces.get(i, ()), *gaps[i]]
        split = work.call is not None and len(work.phases) > 1
        guessed = work.call is not None and work.call.grade == "C"
        kind = work.kind if work.kind in KIND_STYLE else "other"
        if work.call is not None and len(work.phases) == 1:
            kind = work.phases[0].kind  # a call that is all one phase has no bar of that below it
        name = printable(work.span.name) + ("" if work.end_ns is not None else " (unfinished)")
        whole = guessed and kind == "decode"
        name += f" ({_ESTIMATED})" if whole else ""
        container = split or not work.phases
        found.append(Row(name, depth, kind, start, end, tuple(own), container, whole))
        for phase in work.phases if split else ():
            begin, stop = phase.start_ns - task.start_ns, phase.end_ns - task.start_ns
            part = tuple((a, b) for a, b in own if begin <= a and b <= stop)
            estimated = guessed and phase.kind == "decode"
            label = _ESTIMATED if estimated else phase.kind
            row = Row(label, depth + 1, phase.kind, begin, stop, part, container=False)
            found.append(replace(row, estimated=estimated))
    return found


def waterfall(profile: TaskProfile, *, width: int) -> Group:
    """Draw the rows; with too many, those on the path and the longest others stay."""
    every = rows(profile)
    shown = choose(every, _MOST_ROWS)
    label_width = min(max([len(r.label) + 2 * min(r.depth, 12) for r in shown] + [12]), width // 3)
    bar = max(20, width - label_width - 4 - 11)
    wall = max(profile.task.wall_ns, 1)
    size, unit = next(
        (s for s in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")) if wall >= s[0]), (1, "ns")
    )
    head = Text("●", style="bold")
    head.append(" on the critical path", style="dim")
    head.append(" " * max(1, 4 + label_width - 22 + 11), style="dim")
    axis_end = f"{wall / size:.3f} {unit}"
    head.append("0" + axis_end.rjust(bar - 1), style="dim")
    lines: list[Text] = [head]
    for row in shown:
        indent = "  " * min(row.depth, 12)
        label = f"{indent}{row.label}"
        if len(label) > label_width:
            label = label[: label_width - 1] + "…"
        on = marked(row, wall)
        line = Text("● " if on else "  ", style="bold")
        line.append(label.ljust(label_width), style=KIND_STYLE[row.kind] if on else "dim")
        line.append(
            f"{(row.end_ns - row.start_ns) / size:9.3f}  ", style="default" if on else "dim"
        )
        _draw(line, row, wall, bar)
        lines.append(line)
    if len(shown) < len(every):
        lines.append(
            Text(f"  … {len(every) - len(shown)} shorter rows beside the path not shown", "dim")
        )
    return Group(*lines)


def marked(row: Row, wall: int) -> bool:
    """Whether the path runs through the row; a container's slivers between children do not count."""
    walked = sum(end - begin for begin, end in row.on_path)
    return walked * 100 >= wall if row.container else walked > 0


def _draw(line: Text, row: Row, wall: int, bar: int) -> None:
    """Append the bar: heavy where on the path, light elsewhere, a line for containers."""
    light, heavy = ("─", "━") if row.container else ("░", "█")
    cells = [" "] * bar
    _fill(cells, row.start_ns, row.end_ns, wall, light)
    for begin, end in row.on_path:
        _fill(cells, begin, end, wall, heavy)
    for cell in cells:
        line.append(cell, style=KIND_STYLE[row.kind] if cell == heavy else "dim")


def _fill(cells: list[str], start: int, end: int, wall: int, mark: str) -> None:
    first = min(start * len(cells) // wall, len(cells) - 1)
    last = max(first + 1, -(-end * len(cells) // wall))
    for cell in range(first, min(last, len(cells))):
        cells[cell] = mark


def _tree(task: Task) -> list[tuple[int, int]]:
    """Indices and depths in tree order, children by start; a loop, so that any depth fits."""
    children: dict[int | None, list[int]] = defaultdict(list)
    for i, work in enumerate(task.works):
        children[work.parent].append(i)
    found = []
    stack = [(i, 0) for i in reversed(children[None])]
    while stack:
        i, depth = stack.pop()
        found.append((i, depth))
        stack.extend((child, depth + 1) for child in reversed(children[i]))
    return found


def choose(every: list[Row], most: int) -> list[Row]:
    """At most so many rows, in order: those on the path first, then the longest."""
    if len(every) <= most:
        return every
    weight = sorted(
        range(len(every)),
        key=lambda i: (
            -sum(b - a for a, b in every[i].on_path),
            every[i].start_ns - every[i].end_ns,
            i,
        ),
    )
    return [every[i] for i in sorted(weight[:most])]
