"""A task's segments with what of each lies on the critical path: the rows of ``profile --csv``."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.task_assignment import owners

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gatekeeper.core.task_profile import TaskProfile

__all__ = ["COLUMNS", "Segment", "path_stretches", "segments", "segments_csv"]

COLUMNS = (
    "file",
    "task",
    "span",
    "part",
    "kind",
    "name",
    "start_s",
    "end_s",
    "on_path",
    "on_path_s",
    "grade",
)
"""Columns of the table. ``part`` is ``segment`` for work, ``gap`` for time on the path that is none.

Times are seconds since the task's start, exact to the nanosecond. ``on_path_s`` sums to the wall
time of each task. ``grade`` is that of the model call; empty for what belongs to none.
"""

_NS = 10**9
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_Intervals = list[tuple[int, int]]


@dataclass(frozen=True)
class Segment:
    """One stretch of a span, or a gap on the path; nanoseconds since the task's start.

    ``work`` is the span's index in the task, None for a gap outside all spans.
    """

    work: int | None
    part: str
    kind: str
    start_ns: int
    end_ns: int
    on_path_ns: int


def path_stretches(profile: TaskProfile) -> tuple[dict[int, _Intervals], list[Segment]]:
    """Return what of each span's own work lies on the path, and the gaps on it.

    A gap before a span's start was waited for in the span around it, any other in the span itself.
    """
    graph, task = profile.graph, profile.task
    pieces: dict[int, _Intervals] = defaultdict(list)
    gaps = []
    for step in profile.path:
        work = graph.work[step.node]
        start = graph.start_ns[step.node]
        if work is not None and step.duration_ns:
            pieces[work].append((start, start + graph.duration_ns[step.node]))
        if step.lag_ns:
            owner = work
            if work is not None and task.works[work].span.start_ns - task.start_ns == start:
                owner = task.works[work].parent
            lag = graph.lag_ns[step.node]
            kind = graph.lag_kind[step.node]
            gaps.append(Segment(owner, "gap", kind, start - lag, start, lag))
    return pieces, gaps


def segments(profile: TaskProfile) -> list[Segment]:
    """All work of a task and the gaps on its path, by start; ``on_path_ns`` sums to the wall."""
    task = profile.task
    pieces, found = path_stretches(profile)
    for i, work in enumerate(task.works):
        if work.absorbed:
            continue
        for phase in work.phases:
            begin, end = phase.start_ns - task.start_ns, phase.end_ns - task.start_ns
            walked = sum(max(0, min(b, end) - max(a, begin)) for a, b in pieces.get(i, ()))
            found.append(Segment(i, "segment", phase.kind, begin, end, walked))
    return sorted(found, key=lambda s: (s.start_ns, s.end_ns, -1 if s.work is None else s.work))


def segments_csv(profiles: Iterable[tuple[str, TaskProfile]]) -> str:
    """Table of the segments of all tasks; text that a spreadsheet would run gets an apostrophe."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    for file, profile in profiles:
        task = profile.task
        owner = owners(task)
        for one in segments(profile):
            work = None if one.work is None else task.works[one.work]
            within = None if one.work is None or one.part == "gap" else owner[one.work]
            call = None if within is None else task.works[within].call
            rows.writerow(
                (
                    _text(file),
                    _text(task.task_id),
                    "" if work is None else _text(work.span.span_id),
                    one.part,
                    one.kind,
                    "" if work is None else _text(work.span.name),
                    _seconds(one.start_ns),
                    _seconds(one.end_ns),
                    "yes" if one.on_path_ns else "no",
                    _seconds(one.on_path_ns),
                    "" if call is None else call.grade,
                )
            )
    return out.getvalue()


def _text(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _seconds(ns: int) -> str:
    """Exact decimal: a float of seconds would round nanoseconds."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // _NS}.{abs(ns) % _NS:09d}"
