"""Records as JSON: times in RFC 3339, secrets left out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.decide import stamp
from gatekeeper.actions.queue import waiting_for
from gatekeeper.core.span_documents import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.actions.tasks import PathView
    from gatekeeper.store.records import EvidenceRecord, GateRecord, RunRecord, TokenRecord

__all__ = ["evidence_view", "path_view", "plain_view", "result_view", "run_view", "token_view"]

_NS = 10**9


def plain_view(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any record of the store
    """Every field of a record; those named ``*_at`` and ``lease_until`` as times."""
    return {
        name: stamp(value) if name.endswith("_at") or name in {"lease_until", "at"} else value
        for name, value in asdict(record).items()
    }


def run_view(
    run: RunRecord, outcome: str | None, result: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a run, what it waits for while pending, and its outcome once there is one."""
    view = plain_view(run)
    view["outcome"] = outcome
    view["waiting_for"] = waiting_for(run)
    if result is not None:
        view["result"] = result
    return view


def result_view(record: GateRecord | None) -> dict[str, Any] | None:
    """Return the stored result with its times."""
    if record is None:
        return None
    return {
        **record.document,
        "finished_at": stamp(record.finished_at),
        "expires_at": stamp(record.expires_at),
    }


def evidence_view(records: Sequence[EvidenceRecord]) -> list[dict[str, Any]]:
    """Return tables without the server's paths."""
    return [
        {"table": r.table, "sha256": r.sha256, "rows": r.rows, "bytes": r.bytes} for r in records
    ]


def token_view(record: TokenRecord) -> dict[str, Any]:
    """Return a token without its hash."""
    view = plain_view(record)
    del view["sha256"]
    return view


def path_view(path: PathView) -> dict[str, Any]:
    """Return a critical path's steps in seconds, and the calls with their routes."""
    profile = path.profile
    task, graph = profile.task, profile.graph
    steps = []
    for step in profile.path:
        if step.lag_ns or step.duration_ns:
            work = graph.work[step.node]
            span = None if work is None else task.works[work].span
            steps.append(
                {
                    "span_id": None if span is None else span.span_id,
                    "name": None if span is None else clean(span.name),
                    "kind": graph.kind[step.node],
                    "lag_kind": graph.lag_kind[step.node],
                    "lag_s": float(step.lag_ns / _NS),
                    "duration_s": float(step.duration_ns / _NS),
                }
            )
    saved = profile.saving.value
    return {
        "task": path.record.id,
        "version": path.record.version,
        "wall_s": task.wall_ns / _NS,
        "decode_speedup": float(profile.speedup),
        "saving_s": None if saved is None else float(saved / _NS),
        "evidence_grade": profile.evidence_grade,
        "reconciled": profile.reconciled,
        "steps": steps,
        "calls": [
            {"span_id": c.span_id, "name": clean(c.name), "route": c.route, "why": clean(c.why)}
            for c in path.calls
        ],
    }
