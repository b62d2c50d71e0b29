"""What a measured decode speed-up will save a task, predicted from a trace without it.

The task's event graph is simulated again with the decode of each model call scaled by the ratio
that was measured at the call's own concurrency: calls that decode together gain less than a call
alone. The saving is T(1) − T(ratios), so work that runs beside a slow tool saves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.critical_path import factor, saving, stretch
from gatekeeper.core.task_assignment import owners
from gatekeeper.core.task_profile import profile_task
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from gatekeeper.core.traces import Span, Trace

__all__ = ["CONCURRENCY_ATTRIBUTE", "PredictedSaving", "Speedup", "predict_saving"]

CONCURRENCY_ATTRIBUTE = "gatekeeper.concurrency"
"""Span attribute: how many calls of this application the engine decoded together."""

_MEASURED = ("A", "B")


@dataclass(frozen=True)
class Speedup:
    """Decode speed-up measured at one concurrency: the ratio and its interval.

    Raises:
        InputError: the three are not positive, finite and in order, or the concurrency is none.
    """

    concurrency: int
    low: float
    value: float
    high: float

    def __post_init__(self) -> None:
        ends = (self.low, self.value, self.high)
        ordered = 0 < self.low <= self.value <= self.high
        if self.concurrency < 1 or not ordered or not all(map(math.isfinite, ends)):
            raise InputError(
                "is not a speed-up with its interval",
                field="speedup",
                value=f"{self.concurrency}={','.join(map(str, ends))}",
                remedy="give CONCURRENCY=LOW,VALUE,HIGH with 0 < LOW <= VALUE <= HIGH",
            )


@dataclass(frozen=True)
class PredictedSaving:
    """T(1) − T in nanoseconds at the ratios and at both ends of their intervals.

    All three are None where ``problem`` says why this trace predicts nothing; never zero.
    """

    task_id: str
    wall_ns: int
    value_ns: Fraction | None
    low_ns: Fraction | None
    high_ns: Fraction | None
    problem: str | None


def predict_saving(
    trace: Trace,
    speedups: Sequence[Speedup],
    *,
    only: Callable[[Span], bool] = lambda _: True,
) -> PredictedSaving:
    """Predict the saving of one traced task.

    A call gains the ratio that was measured at its own concurrency, and stays as it is where none
    was. The makespan is monotone in every ratio, so the ends of the interval, taken for all calls
    together, bound every draw of ratios inside it.

    Args:
        trace: a task as it ran without the speed-up.
        speedups: what was measured, one for each concurrency.
        only: which calls become faster; the others stay as they were.

    Raises:
        InputError: no speed-up is given.
    """
    if not speedups:
        raise InputError("is empty", field="speedup", remedy="measure one with the serving gate")
    profile = profile_task(trace)
    task, graph = profile.task, profile.graph
    problem = None
    if not task.calls:
        problem = "the trace holds no model call"
    elif not profile.trusted or not profile.reconciled:
        problem = "the trace does not reconcile: " + "; ".join(profile.repairs)
    elif profile.evidence_grade not in _MEASURED:
        problem = f"evidence grade {profile.evidence_grade}: decode times are not measured"
    if problem is not None:
        return PredictedSaving(task.task_id, task.wall_ns, None, None, None, problem)
    measured = {s.concurrency: s for s in speedups}
    spans = {i: task.works[i].span for i, _ in task.calls}
    own = {i: span.attributes.get(CONCURRENCY_ATTRIBUTE, 1) for i, span in spans.items()}
    chosen = {i: measured[own[i]] for i in spans if own[i] in measured and only(spans[i])}
    # A server may write the phases of a call as spans below it: their decode is the call's.
    decoding = {i: chosen[call] for i, call in enumerate(owners(task)) if call in chosen}
    value, low, high = (
        saving(
            graph,
            stretch(graph, task, calls={i: factor(getattr(s, end)) for i, s in decoding.items()}),
        )
        for end in ("value", "low", "high")
    )
    return PredictedSaving(task.task_id, task.wall_ns, value, low, high, None)
