"""How long a task takes when one route's decoding lasts x times as long, for x on a fixed grid.

x = 1/s for a speed-up s. The makespan T(x) is convex, piecewise linear and non-decreasing, and
T(1) is the observed wall exactly (`gatekeeper.core.critical_path`). Straight lines between grid
points lie on or above a convex function, so what is read off the curve never overstates a saving.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from gatekeeper.core.critical_path import makespan, stretch
from gatekeeper.core.event_graph import build_graph
from gatekeeper.core.task_assignment import owners
from gatekeeper.core.tasks import with_rates
from gatekeeper.core.token_rates import TokenRates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.event_graph import EventGraph
    from gatekeeper.core.task_assignment import AssignedCall
    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.tasks import Task

__all__ = ["GRID", "Curve", "RouteCurves", "route_curves"]

GRID: tuple[Fraction, ...] = (
    *(Fraction(k, 20) for k in range(21)),
    *(Fraction(k, 10) for k in range(11, 21)),
    Fraction(3),
)
"""Factors of the decode time: 0, 0.05, …, 1, 1.1, …, 2, 3. Slow-downs belong to it: speculation can
cost time."""

Curve = tuple[tuple[Fraction, Fraction], ...]
"""(x, makespan in nanoseconds) in order of x, exact."""

_LOWEST_GRADE = "D"


@dataclass(frozen=True)
class RouteCurves:
    """What one route's decoding means for one task. Times are nanoseconds.

    ``grade`` is the worst of the task's and of this route's calls on the path. ``decode_on_path_ns``
    is this route's decode on the critical path. The curves are None where the task must not be
    priced: grade D, untrusted timings or not reconciled. ``low`` and ``high`` use the edges of the
    token rates where calls only count tokens (grade C), and equal ``typical`` otherwise. What is
    saved at most, by infinitely fast decoding, is ``ceiling_ns``.
    """

    route: str
    calls: int
    grade: str
    decode_on_path_ns: int | None
    typical: Curve | None
    low: Curve | None
    high: Curve | None

    @property
    def ceiling_ns(self) -> Fraction | None:
        """T(1) − T(0); None where the curve is unknown."""
        if self.typical is None:
            return None
        return dict(self.typical)[Fraction(1)] - self.typical[0][1]


def route_curves(
    profile: TaskProfile,
    assigned: Sequence[AssignedCall],
    *,
    rates: TokenRates | None = None,
) -> tuple[RouteCurves, ...]:
    """Curves of every route that a task's calls belong to, by route name.

    Args:
        profile: the task's profile, made with the same ``rates``.
        assigned: the route of each call (`gatekeeper.core.task_assignment.assign`).
        rates: time per output token by route and model, for calls of grade C.
    """
    edges: list[tuple[Task, EventGraph]] = []
    priced = profile.reconciled and profile.evidence_grade != _LOWEST_GRADE and profile.trusted
    if priced and any(call.grade == "C" for _, call in profile.task.calls):
        known = rates or TokenRates()
        tasks = (with_rates(profile.task, known, edge=edge) for edge in ("low", "high"))
        edges = [(task, build_graph(task)) for task in tasks]
    found = []
    for route in sorted({a.route for a in assigned if a.route is not None}):
        calls = {a.work for a in assigned if a.route == route}
        grade = max(profile.evidence_grade, _grade(profile, calls))
        typical = low = high = None
        if priced and grade != _LOWEST_GRADE:
            typical = _curve(profile.task, profile.graph, calls)
            low, high = [_curve(t, g, calls) for t, g in edges] or (typical, typical)
        found.append(
            RouteCurves(
                route=route,
                calls=len(calls),
                grade=grade,
                decode_on_path_ns=None if typical is None else _on_path(profile, calls),
                typical=typical,
                low=low,
                high=high,
            )
        )
    return tuple(found)


def _curve(task: Task, graph: EventGraph, calls: set[int]) -> Curve:
    decoding = _works_of(task, calls)
    return tuple(
        (x, makespan(graph, stretch(graph, task, calls=dict.fromkeys(decoding, x)))) for x in GRID
    )


def _works_of(task: Task, calls: set[int]) -> list[int]:
    """Spans whose decode is these calls': the call's own and the server's phases below it."""
    return [i for i, owner in enumerate(owners(task)) if owner in calls]


def _grade(profile: TaskProfile, calls: set[int]) -> str:
    """Worst grade of these calls on the critical path or without an end; best when none is."""
    on_path = {profile.graph.work[step.node] for step in profile.path}
    owner = owners(profile.task)
    reached = {owner[i] for i in on_path if i is not None}
    grades = [
        call.grade
        for i, call in profile.task.calls
        if i in calls and (i in reached or profile.task.works[i].end_ns is None)
    ]
    return max(grades, default="A")


def _on_path(profile: TaskProfile, calls: set[int]) -> int:
    mine = set(_works_of(profile.task, calls))
    graph = profile.graph
    return round(
        sum(
            (
                step.duration_ns
                for step in profile.path
                if graph.kind[step.node] == "decode" and graph.work[step.node] in mine
            ),
            Fraction(0),
        )
    )
