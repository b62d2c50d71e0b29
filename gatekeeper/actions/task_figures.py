"""One task's figures from its spans: what is stored, shown and later priced."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import structlog

from gatekeeper.core.saving_curve import Curve, RouteCurves, route_curves
from gatekeeper.core.span_documents import clean
from gatekeeper.core.task_assignment import (
    AssignedCall,
    Routing,
    TaskRules,
    arm_of,
    assign,
    joined,
    session_of,
)
from gatekeeper.core.task_profile import TaskProfile, profile_task
from gatekeeper.core.tasks import build_task
from gatekeeper.core.token_rates import TokenRates, observed_rates
from gatekeeper.core.traces import Span, Trace, assemble
from gatekeeper.errors import InputError
from gatekeeper.reports.profile import profile_json
from gatekeeper.store import tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.tasks import Task

__all__ = ["Computed", "compute", "conversation_id", "figures", "is_conversation", "routes_of"]

_CONVERSATION = "conversation-"
_NS = 10**9

# A trace comes from outside and must not be able to stop the service that computes it: whatever
# the arithmetic raises is written down on its task, which then is not priced.
DEFECTS = (
    ArithmeticError,
    AttributeError,
    InputError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

_log = structlog.get_logger()


@dataclass(frozen=True)
class Computed:
    """A task's profile, its calls with their routes, and each route's saving curves."""

    profile: TaskProfile
    calls: tuple[AssignedCall, ...]
    curves: tuple[RouteCurves, ...]


def is_conversation(task_id: str) -> bool:
    """Whether a task is a conversation, not one trace."""
    return task_id.startswith(_CONVERSATION)


def conversation_id(name: str) -> str:
    """Task id of a conversation: names are anybody's, ids stand in URLs."""
    sha256 = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()
    return f"{_CONVERSATION}{sha256[:32]}"


def routes_of(seen: tasks.Unsettled, found: Sequence[Span], routing: Routing) -> set[str]:
    """Routes that a task's calls belong to: whose rules say when it is complete."""
    if not routing.routes:
        return set()
    try:
        calls = assign(build_task(_trace(seen, found)), routing)
    except DEFECTS:
        return set()  # compute() will say why
    return {call.route for call in calls if call.route is not None}


def compute(
    seen: tasks.Unsettled, found: Sequence[Span], routing: Routing, *, speedup: float = 2
) -> tuple[Computed | None, str | None]:
    """Compute a task, or say in words why that is not possible."""
    try:
        trace = _trace(seen, found)
        task = build_task(trace)
        calls = assign(task, routing)
        rates = _rates(task, calls)
        profile = profile_task(trace, speedup=speedup, rates=rates, task=task)
        curves = route_curves(profile, calls, rates=rates)
    except DEFECTS as error:
        _log.error("task cannot be computed", task=seen.id, error=repr(error))
        return None, clean(f"cannot be computed: {error}")
    return Computed(profile, calls, curves), None


def _rates(task: Task, calls: Sequence[AssignedCall]) -> TokenRates:
    """Time per output token that this task's own calls show, by the routes that rules give them.

    Only calls that count tokens and show no more ask for it.
    """
    routes = {call.work: call.route for call in calls if call.route is not None}
    asked = any(call.grade == "C" for _, call in task.calls)
    return observed_rates(
        (replace(call, route=routes.get(i)) for i, call in task.calls if asked),
        routes={(task.task_id, task.works[i].span.span_id): route for i, route in routes.items()},
    )


def _trace(seen: tasks.Unsettled, found: Sequence[Span]) -> Trace:
    if is_conversation(seen.id):
        (trace,) = joined(seen.id, seen.source_format, found)
    else:
        notes = {found[0].trace_id: seen.notes}
        (trace,) = assemble(found, source_format=seen.source_format, repairs=notes)
    return trace


def figures(
    seen: tasks.Unsettled,
    found: Sequence[Span],
    computed: Computed | None,
    problem: str | None,
    rules: Sequence[TaskRules],
) -> tasks.Figures:
    """Put together what the store keeps of a task; ``problem`` stands in for what is not known."""
    cluster = clean(session_of(found, rules, default=seen.id))
    started = min(span.start_ns for span in found)
    if computed is None:
        ends = [span.end_ns for span in found if span.end_ns is not None]
        return tasks.Figures(
            session=cluster,
            calls=0,
            unmatched_calls=0,
            grade="D",
            reconciled=False,
            wall_s=(max([started, *ends]) - started) / _NS,
            started_at=started / _NS,
            document={"task_id": seen.id, "repairs": [problem]},
        )
    profile = computed.profile
    wall_s = profile.task.wall_ns / _NS
    return tasks.Figures(
        session=cluster,
        calls=profile.model_calls,
        unmatched_calls=sum(call.route is None for call in computed.calls),
        grade=profile.evidence_grade,
        reconciled=profile.reconciled,
        wall_s=wall_s,
        started_at=started / _NS,
        document=_cleaned(profile_json(profile, f"/v1/tasks/{seen.id}")),
        routes=tuple(
            tasks.TaskRoute(
                task=seen.id,
                version=0,
                session=cluster,
                route=one.route,
                calls=one.calls,
                grade=one.grade,
                reconciled=profile.reconciled,
                wall_s=wall_s,
                decode_on_path_s=_seconds(one.decode_on_path_ns),
                curve=_points(one.typical),
                curve_low=_points(one.low),
                curve_high=_points(one.high),
                ceiling_s=_seconds(one.ceiling_ns),
                arm=arm_of(computed.calls, one.route),
            )
            for one in computed.curves
        ),
    )


def _seconds(ns: Fraction | int | None) -> float | None:
    return None if ns is None else float(Fraction(ns) / _NS)


def _points(curve: Curve | None) -> list[list[float]] | None:
    return None if curve is None else [[float(x), float(ns / _NS)] for x, ns in curve]


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - JSON is any
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value
