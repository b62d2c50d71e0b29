"""What a repeated equivalence run goes on from: a FAIL sticks, an inconclusive run is continued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.actions.catalog import covered_sampling
from gatekeeper.core.running_pair import declared_weights, is_running_pair
from gatekeeper.errors import Conflict
from gatekeeper.gates.equivalence_record import TABLES, Before
from gatekeeper.store import results, runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import (
        ArtifactRecord,
        GateRecord,
        PolicyRecord,
        RouteRecord,
        RunRecord,
    )

__all__ = ["GATE", "before_of", "continued", "refuse_after_fail"]

GATE = "equivalence"
"""The one gate whose evidence adds up over runs: the others measure anew, on fresh blocks and pairs."""


def refuse_after_fail(session: Session, run: RunRecord) -> None:
    """Refuse to test again what has failed: repeating until it passes would be no test.

    Raises:
        Conflict: the route's artifact has failed this gate under this policy.
    """
    if run.gate != GATE:
        return
    governing = results.governing_results(
        session, route=run.route, artifact=run.artifact, policy=run.policy
    )
    found = governing.get(GATE)
    if found is not None and found.outcome == "FAIL":
        raise Conflict(
            f"has failed in run {found.run}: that stands for this artifact and policy",
            field="gate",
            value=GATE,
            remedy="correct the pair and register it, or set an override with its reason",
        )


def continued(
    session: Session, run: RunRecord, artifact: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Inconclusive run that ``run`` goes on from: its id and the sha256 of its tables; or None.

    It is the newest judged run of the same route, artifact, policy, slice and settings. Runs that
    ended in an error, or were cancelled, say nothing and are passed over; texts alone have no
    e-process to go on with. Whether engine and design are the same, the worker sees.
    """
    if run.gate != GATE or (is_running_pair(artifact) and declared_weights(artifact) is None):
        return None
    before = _inconclusive(session, run.route, run.artifact, run.policy)
    record = None if before is None else runs.get(session, before.run)
    if record is None or (record.slice, record.sampling) != (run.slice, run.sampling):
        return None
    evidence = {row.table: row.sha256 for row in results.evidence(session, record.id)}
    if not evidence.keys() >= set(TABLES):
        return None
    return {"run": record.id, "evidence": {name: evidence[name] for name in TABLES}}


def before_of(
    db: Database, route: RouteRecord, artifact: ArtifactRecord, policy: PolicyRecord
) -> Before:
    """What a run submitted now would go on from, as far as its result tells."""
    with db.read() as session:
        before = _inconclusive(session, route.name, artifact.digest, policy.digest)
        record = None if before is None else runs.get(session, before.run)
    sampling = covered_sampling(route.sampling, artifact.document, route=route.name)
    if (
        before is None
        or record is None
        or (record.slice, record.sampling) != (route.slice, sampling)
    ):
        return Before(runs=0, tokens=0)
    summary = before.document["summary"]
    return Before(runs=1 + len(summary.get("continues", ())), tokens=int(summary.get("tokens", 0)))


def _inconclusive(session: Session, route: str, artifact: str, policy: str) -> GateRecord | None:
    """The newest judged run, where it is inconclusive."""
    found = results.newest_result(
        session,
        route=route,
        gate=GATE,
        artifact=artifact,
        policy=policy,
        outcomes=("PASS", "INCONCLUSIVE", "FAIL"),
    )
    return found if found is not None and found.outcome == "INCONCLUSIVE" else None
