"""What is known of each model call of a task, and by which rule: the rows behind its grade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.task_assignment import owners

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.critical_path import Step
    from gatekeeper.core.event_graph import EventGraph
    from gatekeeper.core.model_calls import CallTiming
    from gatekeeper.core.tasks import Task

__all__ = ["CALL_KINDS", "CallEvidence", "evidence_of"]

CALL_KINDS = ("queue", "prefill", "decode", "other")
"""Segment kinds that a model call has."""

_SPLIT = ("queue", "prefill", "decode")


@dataclass(frozen=True)
class CallEvidence:
    """One model call: its span, its grade and the rule that gave it; None where not recorded.

    ``start_ns`` counts from the task's start; ``wall_ns`` is None while the call has no end.
    ``segments_ns`` and ``on_path_ns`` have the call's time by kind (`CALL_KINDS`), all of it and
    what lies on the critical path: estimated for grade C. A kind that the evidence cannot tell is
    None: the queue for grades B and C, whose prefill holds it, and every phase for grade D.
    """

    span_id: str
    name: str
    route: str | None
    model: str | None
    start_ns: int
    wall_ns: int | None
    grade: str
    rule: str
    output_tokens: int | None
    attempts: int
    segments_ns: Mapping[str, int | None]
    on_path_ns: Mapping[str, int | None]


def evidence_of(task: Task, graph: EventGraph, path: Iterable[Step]) -> tuple[CallEvidence, ...]:
    """Evidence of every model call, leaves only, in canonical order of their spans.

    Args:
        task: the task.
        graph: its event graph.
        path: its critical path.
    """
    calls = task.calls
    if not calls:
        return ()
    owner = owners(task)
    on_path = {step.node for step in path}
    spent = {i: dict.fromkeys(CALL_KINDS, 0) for i, _ in calls}
    walked = {i: dict.fromkeys(CALL_KINDS, 0) for i, _ in calls}
    for node, (kind, at) in enumerate(zip(graph.kind, graph.work, strict=True)):
        whose = None if at is None else owner[at]
        # Below a call lie its phases, but also the tools that it started while it streamed.
        if whose is not None and kind is not None and (at == whose or kind in _SPLIT):
            spent[whose][kind] += graph.duration_ns[node]
            walked[whose][kind] += graph.duration_ns[node] if node in on_path else 0
    rows = []
    for i, call in calls:
        work, unknown = task.works[i], _unknown(call)
        rows.append(
            CallEvidence(
                span_id=work.span.span_id,
                name=work.span.name,
                route=call.route,
                model=call.model,
                start_ns=work.span.start_ns - task.start_ns,
                wall_ns=None if work.end_ns is None else work.end_ns - work.span.start_ns,
                grade=call.grade,
                rule=call.rule,
                output_tokens=call.output_tokens,
                attempts=call.attempts,
                segments_ns=_known(spent[i], unknown),
                on_path_ns=_known(walked[i], unknown),
            )
        )
    return tuple(rows)


def _unknown(call: CallTiming) -> tuple[str, ...]:
    """Kinds that a call's evidence does not tell."""
    if call.grade == "D":
        return _SPLIT
    refused = [phase.kind for phase in call.phases] == ["other"]
    return () if call.grade == "A" or refused else ("queue",)


def _known(lengths: Mapping[str, int], unknown: tuple[str, ...]) -> dict[str, int | None]:
    return {kind: None if kind in unknown else ns for kind, ns in lengths.items()}
