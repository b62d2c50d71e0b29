"""What is known of each model call of a task, and by which rule: the rows behind its grade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper.core.tasks import Task

__all__ = ["CallEvidence", "evidence_of"]


@dataclass(frozen=True)
class CallEvidence:
    """One model call: its span, its grade and the rule that gave it; None where not recorded.

    ``decode_ns`` is its decode as the task counts it, estimated for grade C; None for grade D and
    where the phases are spans of their own.
    """

    span_id: str
    name: str
    route: str | None
    model: str | None
    grade: str
    rule: str
    output_tokens: int | None
    attempts: int
    decode_ns: int | None


def evidence_of(task: Task) -> tuple[CallEvidence, ...]:
    """Evidence of every model call, leaves only, in canonical order of their spans."""
    rows = []
    for i, call in task.calls:
        work = task.works[i]
        decode = sum(p.end_ns - p.start_ns for p in work.phases if p.kind == "decode")
        known = call.grade != "D" and (bool(call.phases) or call.grade == "C")
        rows.append(
            CallEvidence(
                span_id=work.span.span_id,
                name=work.span.name,
                route=call.route,
                model=call.model,
                grade=call.grade,
                rule=call.rule,
                output_tokens=call.output_tokens,
                attempts=call.attempts,
                decode_ns=decode if known else None,
            )
        )
    return tuple(rows)
