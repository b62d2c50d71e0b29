"""Longest path through a task's event graph, and what it becomes when some work gets faster.

The graph is simulated forward: a node starts when its last predecessor has ended plus its lag,
and lasts its duration times a factor. With all factors 1 this reproduces the observed makespan
exactly. Everything is exact rational arithmetic: the makespan is a maximum of linear functions
of the factors, hence convex, and rounding would break that.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.event_graph import EventGraph
    from gatekeeper.core.tasks import Task

__all__ = ["Step", "critical_path", "factor", "makespan", "saving", "saving_draws", "stretch"]


@dataclass(frozen=True)
class Step:
    """One node on the critical path with the lag before it; nanoseconds, exact."""

    node: int
    lag_ns: Fraction
    duration_ns: Fraction


def factor(speedup: Fraction | float | str) -> Fraction:
    """Duration factor x = 1/s of a speed-up s.

    Text is read as a decimal, and a float counts as the decimal that prints: 1.1 is eleven tenths.

    Raises:
        InputError: the speed-up is not a positive finite number.
    """
    try:
        ratio = Fraction(repr(speedup)) if isinstance(speedup, float) else Fraction(speedup)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise InputError(
            "is not a finite number",
            field="speedup",
            value=speedup,
            remedy="use a number above 0; 2 means twice as fast",
        ) from error
    if ratio <= 0:
        raise InputError(
            "must be above 0",
            field="speedup",
            value=speedup,
            remedy="2 means twice as fast, 0.5 half as fast",
        )
    return 1 / ratio


def stretch(
    graph: EventGraph,
    task: Task,
    *,
    kinds: Mapping[str, Fraction] | None = None,
    names: Mapping[str, Fraction] | None = None,
    calls: Mapping[int, Fraction] | None = None,
) -> tuple[Fraction, ...]:
    """Duration factor of each node: by call, else by span name, else by segment kind, else 1.

    Args:
        graph: the task's event graph.
        task: the task; gives the names.
        kinds: factor by segment kind, such as ``{"decode": Fraction(1, 2)}``.
        names: factor for all work of spans with a name.
        calls: factor for the decode of one model call, by the span's index in the task.
    """
    one = Fraction(1)
    by_kind, by_name, by_call = kinds or {}, names or {}, calls or {}
    factors = []
    for kind, work in zip(graph.kind, graph.work, strict=True):
        x = one if kind is None else by_kind.get(kind, one)
        if kind is not None and work is not None:
            x = by_name.get(task.works[work].span.name, x)
            if kind == "decode":
                x = by_call.get(work, x)
        factors.append(x)
    return tuple(factors)


def makespan(graph: EventGraph, factors: Sequence[Fraction] | None = None) -> Fraction:
    """Simulated makespan in nanoseconds; the observed one when ``factors`` is None."""
    ends, unit = _simulate(graph, factors)
    return Fraction(ends[-1], unit)


def saving(graph: EventGraph, factors: Sequence[Fraction]) -> Fraction:
    """Makespan observed minus makespan simulated, nanoseconds; negative for a slowdown."""
    return graph.start_ns[-1] - makespan(graph, factors)


def saving_draws(
    graph: EventGraph, task: Task, draws: Iterable[Mapping[int, Fraction]]
) -> list[Fraction]:
    """Saving for each draw of per-call decode factors.

    The makespan is convex in the factors, so the saving at the mean factor overstates the mean
    saving: draw, then average.
    """
    return [saving(graph, stretch(graph, task, calls=draw)) for draw in draws]


def critical_path(graph: EventGraph, factors: Sequence[Fraction] | None = None) -> tuple[Step, ...]:
    """Steps from the task's start to its end; their lags and durations sum to the makespan.

    Among predecessors that end together the one that did work wins, then the later one in
    canonical order, so that the path does not depend on the order of delivery.
    """
    ends, unit = _simulate(graph, factors)
    steps = []
    node: int | None = len(graph) - 1
    while node is not None:
        before = graph.predecessors[node]
        previous = (
            max(before, key=lambda p: (ends[p], graph.kind[p] is not None, p)) if before else None
        )
        lag = graph.lag_ns[node]
        arrived = (ends[previous] if previous is not None else 0) + lag * unit
        steps.append(Step(node, Fraction(lag), Fraction(ends[node] - arrived, unit)))
        node = previous
    return tuple(reversed(steps))


def _simulate(graph: EventGraph, factors: Sequence[Fraction] | None) -> tuple[list[int], int]:
    """Ends of all nodes as whole multiples of 1/unit nanosecond."""
    unit = 1 if factors is None else lcm(*{x.denominator for x in factors})
    ends: list[int] = []
    for node, before in enumerate(graph.predecessors):
        # One predecessor is by far the most common case, and max() of a list the dearest part.
        start = ends[before[0]] if len(before) == 1 else max([ends[p] for p in before], default=0)
        worked = graph.duration_ns[node]
        if worked:
            x = None if factors is None else factors[node]
            worked *= unit if x is None else x.numerator * (unit // x.denominator)
        ends.append(start + graph.lag_ns[node] * unit + worked)
    return ends, unit
