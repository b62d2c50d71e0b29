"""What faster work would save a task: decomposition, critical path, saving, grade."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from gatekeeper.core.critical_path import Step, critical_path, makespan, saving
from gatekeeper.core.event_graph import EventGraph, build_graph
from gatekeeper.core.human_wait import WithoutWaiting, without_waiting
from gatekeeper.core.model_calls import outlasts
from gatekeeper.core.span_kinds import KINDS, WORK
from gatekeeper.core.tasks import Task, build_task, untrusted_timings, with_rates
from gatekeeper.core.token_rates import TokenRate, TokenRates, observed_rates
from gatekeeper.core.what_if import Effect, Scope, WhatIf, effects_of, scope_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.traces import Trace

__all__ = [
    "GAIN_RANGE",
    "SavingInterval",
    "TaskProfile",
    "profile_task",
    "ratio_range",
    "token_rates",
]

GAIN_RANGE = (Fraction(3, 4), Fraction(5, 4))
"""Default range of the gain s − 1 around the speed-up asked for, until a serving gate has measured
the ratio per call. All calls move together, which is the widest case: the saving is monotone in
every ratio, so the two ends of the range bound every draw inside it."""


@dataclass(frozen=True)
class SavingInterval:
    """T(1) − T(s) in nanoseconds: at the speed-ups asked for, at both ends of what is uncertain,
    and with explicit causes alone (sensitivity, neither a lower nor an upper bound).

    Every figure is None where it is unknown, never zero.
    """  # noqa: D205 - one sentence

    value: Fraction | None
    low: Fraction | None
    high: Fraction | None
    explicit_only: Fraction | None


_UNPRICED = SavingInterval(None, None, None, None)
_HALVED = WhatIf.decode(2)
_ZERO, _ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class TaskProfile:
    """A task with everything that a report about it needs. Times are nanoseconds.

    ``segments_ns`` sums all leaf work and may exceed the wall; ``critical_path_ns`` sums to the
    wall. ``ceiling_ns`` is what ``what_if`` would save if its work took no time at all; for decoding
    as such and grade D all of the time in model calls, an upper bound. ``evidence_grade`` is the worst on the critical path.
    ``saving`` is that of ``what_if``, and ``effects`` take it apart; ``speedup`` is decoding's alone.
    ``without_waiting`` is the same task in which nobody is waited for, None where nobody was.
    """

    task: Task
    graph: EventGraph
    path: tuple[Step, ...]
    segments_ns: dict[str, int]
    critical_path_ns: dict[str, int]
    saving: SavingInterval
    ceiling_ns: Fraction | None
    speedup: Fraction
    evidence_grade: str
    reconciled: bool
    residual_ns: int
    repairs: tuple[str, ...]
    trusted: bool
    without_waiting: WithoutWaiting | None = None
    what_if: WhatIf = _HALVED
    effects: tuple[Effect, ...] = ()

    @property
    def model_calls(self) -> int:
        """How many model calls the task made, leaves only."""
        return len(self.task.calls)


def token_rates(
    traces: Iterable[Trace], *, routes: Mapping[tuple[str, str], str] | None = None
) -> TokenRates:
    """Time per output token, by route and model, that the calls of these traces themselves show.

    Args:
        traces: the traces.
        routes: routes of calls by trace id and span id, as rules assign them; without it only
            those count that spans name themselves.
    """
    known = TokenRates(routes=routes or {})
    calls = (call for trace in traces for _, call in build_task(trace, rates=known).calls)
    return observed_rates(calls, routes=routes)


def profile_task(
    trace: Trace,
    *,
    speedup: Fraction | float = 2,
    rates: TokenRates | None = None,
    what_if: WhatIf | None = None,
    task: Task | None = None,
) -> TaskProfile:
    """Profile one trace at a decode speed-up, or at any other change.

    Args:
        trace: the trace.
        speedup: how many times as fast decoding becomes; above 0.
        rates: time per output token by route and model, for calls that only count tokens (grade C).
        what_if: what gets faster, instead of all decoding ``speedup`` times.
        task: the trace's task built without rates, where it is at hand.

    Raises:
        InputError: the speed-up is not above 0.
    """
    asked = WhatIf.decode(speedup) if what_if is None else what_if
    known = rates or TokenRates()
    task = build_task(trace, rates=rates) if task is None else with_rates(task, known)
    graph = build_graph(task)
    path = critical_path(graph)
    grade = _grade(task, graph, path)
    wall = task.wall_ns
    walked = sum(s.lag_ns + s.duration_ns for s in path)
    residual = round(wall - walked)
    repairs = [*task.repairs, *graph.repairs]
    reconciled = residual == 0 and makespan(graph) == wall and task.tokens_agree is not False
    if task.tokens_agree is False:
        repairs.append("token totals above the model calls differ from their sum; not priced")
    untrusted = untrusted_timings(task)
    if untrusted:
        grade = "D"
        repairs.append(untrusted)
    repairs += _estimates(task, known)
    scope = scope_of(task, asked)
    # A tool's time is known in every grade: only what touches a call's phases needs its split.
    priced = reconciled and untrusted is None and (grade != "D" or not asked.needs_split)
    return TaskProfile(
        task=task,
        graph=graph,
        path=path,
        segments_ns=_segments(task, graph),
        critical_path_ns=_on_path(graph, path),
        saving=_saving(task, graph, scope, known) if priced else _UNPRICED,
        ceiling_ns=_ceiling(
            task, graph, scope, grade if untrusted is None else None, priced=priced
        ),
        speedup=asked.decode_speedup,
        evidence_grade=grade,
        reconciled=reconciled,
        residual_ns=residual,
        repairs=tuple(repairs),
        trusted=untrusted is None,
        without_waiting=without_waiting(
            task, graph, scope.factors(graph, task) if priced else None
        ),
        what_if=asked,
        effects=effects_of(scope, task, graph, path, priced=priced),
    )


def _saving(task: Task, graph: EventGraph, scope: Scope, rates: TokenRates) -> SavingInterval:
    ranges = [ratio_range(change.speedup) for change in scope.what_if.changes]
    cases: Iterable[tuple[Task, EventGraph]] = [(task, graph)]
    if any(call.grade == "C" for _, call in task.calls):
        others = (with_rates(task, rates, edge=edge) for edge in ("low", "high"))
        cases = ((other, build_graph(other)) for other in others)  # each is as large as the task
    # A faster rate or ratio saves more, a slow-down costs more: the extremes are among the ends.
    ends = [
        saving(g, scope.factors(g, t, speedups=[ends[which] for ends in ranges]))
        for t, g in cases
        for which in (0, 1)
    ]
    explicit = build_graph(task, happens_before=False)
    return SavingInterval(
        value=saving(graph, scope.factors(graph, task)),
        low=min(ends),
        high=max(ends),
        explicit_only=saving(explicit, scope.factors(explicit, task)),
    )


def _estimates(task: Task, rates: TokenRates) -> list[str]:
    """Say which rates stand in for decode times that no span shows."""
    used: Counter[tuple[str, TokenRate]] = Counter()
    cut: Counter[tuple[str, TokenRate]] = Counter()
    for i, call in task.calls:
        if call.grade == "C":
            rate = rates.of(call)
            used[call.model or "unnamed model", rate] += 1
            cut[call.model or "unnamed model", rate] += outlasts(
                task.works[i].span, call, rate.typical_ns
            )
    return [
        f"decode of {n} call{'s' if n > 1 else ''} to {model} estimated at "
        f"{float(rate.typical_ns / 10**6):.1f} ms per output token ({rate.source})"
        + _cut(n, cut[model, rate])
        for (model, rate), n in used.items()
    ]


def _cut(calls: int, longer: int) -> str:
    """How many estimates were cut to the time that their call took."""
    if not longer:
        return ""
    which = "it" if calls == 1 else f"{longer} of them"
    return f"; for {which} that is longer than the call took, and is cut to that"


def ratio_range(speedup: Fraction) -> tuple[Fraction, Fraction]:
    """Lower and upper speed-up of the default draws; never down to standing still."""
    ends = [max(1 + (speedup - 1) * share, speedup / 2) for share in GAIN_RANGE]
    return min(ends), max(ends)


def _ceiling(
    task: Task, graph: EventGraph, scope: Scope, grade: str | None, *, priced: bool
) -> Fraction | None:
    """Saving of work that takes no time; ``grade`` is None where the times are not trusted."""
    if not scope.what_if.decode_alone:
        return saving(graph, scope.gone(graph, task)) if priced else None
    if grade is None or not task.calls:
        return None
    gone = [
        _ZERO if kind == "decode" or (grade == "D" and inside) else _ONE
        for kind, inside in zip(graph.kind, graph.in_call, strict=True)
    ]
    return saving(graph, gone)


def _grade(task: Task, graph: EventGraph, path: tuple[Step, ...]) -> str:
    """Worst grade of the calls on the path; of all calls where the path has none.

    An unfinished call might have been on the path, so it always counts. Without any model
    call there is nothing usable.
    """
    on_path = {graph.work[step.node] for step in path}
    grades = [call.grade for i, call in task.calls if i in on_path or task.works[i].end_ns is None]
    return max(grades or [call.grade for _, call in task.calls], default="D")


def _segments(task: Task, graph: EventGraph) -> dict[str, int]:
    """All leaf work by kind, with the own time of tools and the like that have inner spans."""
    totals = dict.fromkeys(KINDS, 0)
    for kind, duration in zip(graph.kind, graph.duration_ns, strict=True):
        if kind is not None:
            totals[kind] += duration
    inside: dict[int, list[tuple[int, int]]] = {}
    for work in task.works:
        if work.parent is not None and work.end_ns is not None and not work.absorbed:
            inside.setdefault(work.parent, []).append((work.span.start_ns, work.end_ns))
    for i, work in enumerate(task.works):
        if not work.phases and not work.absorbed and work.lag_kind in WORK and work.end_ns:
            totals[work.lag_kind] += _uncovered(work.span.start_ns, work.end_ns, inside.get(i, []))
    return totals


def _uncovered(start: int, end: int, intervals: list[tuple[int, int]]) -> int:
    free, at = 0, start
    for begin, stop in sorted(intervals):
        free += max(0, min(begin, end) - at)
        at = max(at, min(stop, end))
    return free + max(0, end - at)


def _on_path(graph: EventGraph, path: tuple[Step, ...]) -> dict[str, int]:
    totals = dict.fromkeys(KINDS, 0)
    for step in path:
        totals[graph.lag_kind[step.node]] += round(step.lag_ns)
        kind = graph.kind[step.node]
        if kind is not None:
            totals[kind] += round(step.duration_ns)
    return totals
