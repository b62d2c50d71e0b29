"""Everything behind a route's decision in one document; a report only lays it out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.catalog import get_route
from gatekeeper.actions.decide import current, present_pricing, stamp
from gatekeeper.actions.delivered_due import judged_window
from gatekeeper.reports import route_claims
from gatekeeper.store import catalog, decisions, results, rollouts, runs
from gatekeeper.store.database import now
from gatekeeper.store.task_counts import task_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.lease import Lease
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import DecisionRecord, GateRecord, OverrideRecord, RouteRecord

__all__ = ["HISTORY", "PERIODS", "route_report"]

HISTORY = 20
"""Latest decisions and overrides that a report lists."""

PERIODS = 5
"""Judged windows of a rollout that a report lists."""

_EVERY = 100_000
"""More claims than a run has."""


def route_report(db: Database, route: str) -> dict[str, Any]:
    """Return the report of a route as a JSON-able document.

    ``gates`` holds, for each gate, the result that governs the decision: its outcome, state
    (``current`` or ``expired``), run, times, engine as the worker read it back, and evidence
    digests; None where the gate has never judged this artifact under this policy. ``value`` and
    ``tasks`` are None where nothing was priced or ingested, ``delivered`` where no rollout was. ``claims`` hold every number.

    Raises:
        NotFound: no such route.
    """
    record = get_route(db, route)
    decision, lease = current(db, route)
    with db.read() as session:
        document = _document(session, record, decision, lease)
    return {**document, "slice": record.slice}


def _document(
    session: Session, route: RouteRecord, decision: DecisionRecord, lease: Lease
) -> dict[str, Any]:
    artifact = catalog.artifact(session, decision.artifact)
    policy = catalog.policy(session, decision.policy)
    governing = results.governing_results(
        session, route=lease.route, artifact=decision.artifact, policy=decision.policy
    )
    states = {row["gate"]: row for row in lease.gates}
    gates = {
        gate: _gate(session, governing[gate], row) if gate in governing else None
        for gate, row in states.items()
    }
    declared_artifact = {} if artifact is None else dict(artifact.document)
    declared_policy = {} if policy is None else dict(policy.document)
    overrides = decisions.overrides_of(session, lease.route, limit=HISTORY)
    document: dict[str, Any] = {
        "route": lease.route,
        "generated_at": stamp(now(session)),
        "decision": lease.to_dict(),
        "artifact": {"digest": decision.artifact, "document": declared_artifact},
        "policy": {
            "name": None if policy is None else policy.name,
            "digest": decision.policy,
            "document": declared_policy,
        },
        "gates": gates,
        "value": _value(session, route, decision, governing),
        "tasks": _tasks(session, lease.route),
        "delivered": _delivered(session, route),
        "history": [
            _decision(row)
            for row in decisions.decisions(session, route=lease.route, after=None, limit=HISTORY)
        ],
        "overrides": [_override(row) for row in overrides],
    }
    document["claims"] = _claims(session, document)
    return document


def _gate(session: Session, record: GateRecord, row: Mapping[str, Any]) -> dict[str, Any]:
    run = runs.get(session, record.run)
    return {
        "outcome": record.outcome,
        "state": row["state"],
        "mandatory": row["mandatory"],
        "run": record.run,
        "finished_at": stamp(record.finished_at),
        "expires_at": row["expires_at"],
        "result": dict(record.document),
        "engine": None if run is None or run.info is None else dict(run.info),
        "evidence": {t.table: t.sha256 for t in results.evidence(session, record.run)},
    }


def _value(
    session: Session,
    route: RouteRecord,
    decision: DecisionRecord,
    governing: Mapping[str, GateRecord],
) -> dict[str, Any] | None:
    """Pricing document of a route; None unless it rests on what the decision rests on."""
    record = present_pricing(session, route, decision.artifact, decision.policy, governing)
    if record is None:
        return None
    return {**record.document, "priced_at": stamp(record.priced_at)}


def _tasks(session: Session, route: str) -> dict[str, Any] | None:
    """How many tasks there are; None where no trace has ever come in."""
    counted = task_counts(session, route)
    some = counted["complete"] or counted["open"] or counted["unmatched_calls"]
    return counted if some else None


def _delivered(session: Session, route: RouteRecord) -> list[dict[str, Any]] | None:
    """Newest judged windows of a route's rollouts; None where it never had one."""
    found = rollouts.windows(session, route.name, after=None, limit=PERIODS)
    return [judged_window(one) for one in found] if found or route.rollout is not None else None


def _claims(session: Session, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ledger claims of the governing runs, then what the report's own numbers rest on."""
    route, policy, artifact = document["route"], document["policy"], document["artifact"]
    rows: list[dict[str, Any]] = []
    for name, gate in document["gates"].items():
        if gate is None:
            continue
        run = gate["run"]
        stored = results.claims(session, after=None, limit=_EVERY, run_id=run)
        rows += [claim.to_dict() for claim in stored]
        rows += route_claims.judged(run, name, gate["result"], gate["evidence"])
        read_back = gate["engine"] or {}
        rows += route_claims.declared(
            f"run/{run}/engine", read_back, {"run": run}, "read back by the worker"
        )
    if document["value"] is not None:
        rows += [claim.to_dict() for claim in results.claims_below(session, f"value/{route}/")]
        rows += route_claims.priced(route, document["value"])
    if document["tasks"] is not None:
        rows += route_claims.counted(route, document["tasks"])
    rows += route_claims.delivered(route, document["delivered"] or ())
    rows += route_claims.derived(route, document["gates"])
    rows += route_claims.decision_claims(document["decision"], policy["digest"])
    for kind, found in (("policy", policy), ("artifact", artifact)):
        digest = found["digest"]
        rows += route_claims.declared(
            f"{kind}/{digest}", found["document"], {kind: digest}, f"{kind} document"
        )
    for override in document["overrides"]:
        name = f"override/{override['id']}"
        gamma = {"gamma": override["gamma"]}
        rows += route_claims.declared(name, gamma, {"override": override["id"]}, "override")
    return rows


def _decision(record: DecisionRecord) -> dict[str, Any]:
    return {
        "version": [record.epoch, record.counter],
        "action": record.action,
        "reason": record.reason,
        "explanation": record.document["explanation"],
        "artifact": record.artifact,
        "policy": record.policy,
        "decided_at": stamp(record.decided_at),
        "evidence_expires_at": stamp(record.evidence_expires_at),
    }


def _override(record: OverrideRecord) -> dict[str, Any]:
    view = {k: v for k, v in asdict(record).items() if k != "idempotency_key"}
    return {k: stamp(v) if k.endswith("_at") else v for k, v in view.items()}
