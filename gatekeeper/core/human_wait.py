"""A task with and without the time in which it waited for a person.

A person who approves a tool call can take longer than everything else, and no decoder makes them
faster. Some sources give that wait spans of its own; in others it hides in the tools. So a task is
simulated a second time in which nobody is waited for: exactly, where the source tells, and else
with all the time that may be waiting taken away, which is a bound: the truth lies between the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gatekeeper.core.critical_path import makespan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from gatekeeper.core.event_graph import EventGraph
    from gatekeeper.core.tasks import Task

__all__ = ["APART", "BOUND", "MARK", "MEASURED", "WithoutWaiting", "without_waiting"]

MARK = "gatekeeper.human_wait"
"""Span attribute: ``possible`` where a span's time may be a person's as well as its own, ``apart``
on any span of a task whose source tells every wait there was."""

APART = "apart"

MEASURED = "measured"
BOUND = "bound"


@dataclass(frozen=True)
class WithoutWaiting:
    """A task in which nobody is waited for. Times are nanoseconds.

    ``basis`` is ``measured`` where only recorded waits were taken away, ``bound`` where time that
    may be waiting was too. ``saving_ns`` is what the speed-up asked for saves then, None where the
    task is not priced.
    """

    basis: str
    wall_ns: Fraction
    saving_ns: Fraction | None


def without_waiting(
    task: Task, graph: EventGraph, factors: Sequence[Fraction] | None
) -> WithoutWaiting | None:
    """Simulate a task without its waiting; None where no time of it can be waiting.

    Args:
        task: the task.
        graph: its event graph.
        factors: duration factor of each node at the speed-up; None where it is not priced.
    """
    hiding = _hiding(task)
    recorded = any(work.kind == "human_wait" and not work.absorbed for work in task.works)
    if not hiding and not recorded:
        return None
    durations, lags = list(graph.duration_ns), list(graph.lag_ns)
    for node, (kind, lag_kind, at) in enumerate(
        zip(graph.kind, graph.lag_kind, graph.work, strict=True)
    ):
        inside = None if at is None else task.works[at].parent
        if kind == "human_wait" or (kind is not None and at in hiding):
            durations[node] = 0
        if lag_kind == "human_wait" or (lag_kind == "tool" and (at in hiding or inside in hiding)):
            lags[node] = 0
    short = replace(graph, duration_ns=tuple(durations), lag_ns=tuple(lags))
    wall = makespan(short)
    return WithoutWaiting(
        BOUND if hiding else MEASURED,
        wall,
        None if factors is None else wall - makespan(short, factors),
    )


def _hiding(task: Task) -> frozenset[int]:
    """Spans whose time may be waiting: those marked so, else the tools of a source that never tells."""
    works = [(i, work) for i, work in enumerate(task.works) if not work.absorbed]
    marked = frozenset(i for i, work in works if work.span.attributes.get(MARK) == "possible")
    if marked or task.waits_apart:
        return marked
    return frozenset(i for i, work in works if work.kind == "tool")
