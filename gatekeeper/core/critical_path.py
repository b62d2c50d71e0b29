"""Longest path through a task's event graph, and what it becomes when some work gets faster.

The graph is simulated forward: a node starts when its last predecessor has ended plus its lag,
and lasts its duration times a factor. With all factors 1 this reproduces the observed makespan
exactly. Everything is exact rational arithmetic: the makespan is a maximum of linear functions
of the factors, hence convex, and rounding would break that.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.event_graph import EventGraph
    from gatekeeper.core.tasks import Task

__all__ = ["Step", "critical_path", "factor", "makespan", "saving", "saving_draws", "stretch"]


class Step(NamedTuple):
    """One node on the critical path with the lag before it; nanoseconds, exact.

    A tuple, since most nodes of a large task are on its path.
    """

    node: int
    lag_ns: int
    duration_ns: Fraction | int


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
    works: Mapping[int, Mapping[str, Fraction]] | None = None,
    calls: Mapping[int, Fraction] | None = None,
) -> tuple[Fraction, ...]:
    """Duration factor of each node: by call, else by span and kind, else by kind, else 1.

    Args:
        graph: an event graph of the task.
        task: the task; an index below must be that of one of its spans.
        kinds: factor by segment kind, such as ``{"decode": Fraction(1, 2)}``.
        works: factor by the span's index in the task and segment kind.
        calls: factor for the decode of one model call, by the span's index in the task.

    Raises:
        InputError: an index that no span has.
    """
    by_work: dict[int, dict[str, Fraction]] = {i: dict(of) for i, of in (works or {}).items()}
    for i, x in (calls or {}).items():
        by_work.setdefault(i, {})["decode"] = x
    beyond = [i for i in by_work if not 0 <= i < len(task.works)]
    if beyond:
        raise InputError(
            "is not a span of this task",
            field="work",
            value=beyond[0],
            remedy=f"use an index below {len(task.works)}",
        )
    one = Fraction(1)
    by_kind: dict[str | None, Fraction] = {None: one}
    by_kind.update(kinds or {})
    factors = [by_kind.get(kind, one) for kind in graph.kind]
    if by_work:
        for node, work in enumerate(graph.work):
            kind = graph.kind[node]
            if work in by_work and kind is not None:
                factors[node] = by_work[work].get(kind, factors[node])
    return tuple(factors)


def makespan(graph: EventGraph, factors: Sequence[Fraction] | None = None) -> Fraction:
    """Simulated makespan in nanoseconds; the observed one when ``factors`` is None."""
    lasting, unit = _durations(graph, factors)
    return Fraction(_ends(graph, lasting, unit)[-1], unit)


def saving(graph: EventGraph, factors: Sequence[Fraction]) -> Fraction:
    """Makespan observed minus makespan simulated, nanoseconds; negative for a slowdown."""
    return graph.start_ns[-1] - makespan(graph, factors)


def saving_draws(
    graph: EventGraph, task: Task, draws: Iterable[Mapping[int, Mapping[str, Fraction]]]
) -> list[Fraction]:
    """Saving for each draw of factors by span index and segment kind.

    A draw may hold the prefill and the decode of a call together: speculation that decodes faster
    can make the first token later. The makespan is convex in the factors, so the saving at the mean
    factor overstates the mean saving: draw, then average.
    """
    return [saving(graph, stretch(graph, task, works=draw)) for draw in draws]


def critical_path(graph: EventGraph, factors: Sequence[Fraction] | None = None) -> tuple[Step, ...]:
    """Steps from the task's start to its end; their lags and durations sum to the makespan.

    Among predecessors that end together the one that did work wins, then the later one in
    canonical order, so that the path does not depend on the order of delivery.
    """
    lasting, unit = _durations(graph, factors)
    ends = _ends(graph, lasting, unit)
    kinds = graph.kind
    steps = []
    node = len(graph) - 1
    while True:
        worked = lasting[node] if unit == 1 else Fraction(lasting[node], unit)
        steps.append(Step(node, graph.lag_ns[node], worked))
        before = graph.predecessors[node]
        if not before:
            break
        node = before[0]
        for p in before[1:]:
            if (ends[p], kinds[p] is not None) >= (ends[node], kinds[node] is not None):
                node = p
    return tuple(reversed(steps))


def _durations(graph: EventGraph, factors: Sequence[Fraction] | None) -> tuple[Sequence[int], int]:
    """Durations of all nodes as whole multiples of 1/unit nanosecond, and the unit."""
    if factors is None:
        return graph.duration_ns, 1
    # A million nodes share a handful of factors, and to hash or to compare one is dear.
    names = list(map(id, factors))
    distinct = dict(zip(names, factors, strict=True))
    unit = lcm(*{x.denominator for x in distinct.values()})
    scale = {name: x.numerator * (unit // x.denominator) for name, x in distinct.items()}
    return list(map(mul, graph.duration_ns, map(scale.__getitem__, names))), unit


def _ends(graph: EventGraph, lasting: Sequence[int], unit: int) -> list[int]:
    """Ends of all nodes in whole multiples of 1/unit nanosecond."""
    lags = graph.lag_ns if unit == 1 else [lag * unit for lag in graph.lag_ns]
    ends: list[int] = []
    for before, lag, worked in zip(graph.predecessors, lags, lasting, strict=True):
        # One predecessor is by far the most common case, two the next, and a list is dear.
        if len(before) == 1:
            start = ends[before[0]]
        elif len(before) == 2:  # noqa: PLR2004 - as said
            start = max(ends[before[0]], ends[before[1]])
        else:
            start = max([ends[p] for p in before], default=0)
        ends.append(start + lag + worked)
    return ends
