"""A run's end: result, claims, counts and the route's new decision, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from gatekeeper.actions.continuation import GATE, continued
from gatekeeper.actions.decide import derive
from gatekeeper.actions.evidence_tables import EvidenceFolder
from gatekeeper.actions.price import drop_replaced, prepare_pricing, store_pricing
from gatekeeper.core.equations import EQUATIONS, verify
from gatekeeper.core.verdicts import GateResult, Outcome, from_json, to_json
from gatekeeper.errors import EvidenceError, GatekeeperError, InputError
from gatekeeper.gates import equivalence
from gatekeeper.store import access, catalog, results, runs
from gatekeeper.store.records import EvidenceRecord, GateRecord, RunRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gatekeeper.actions.identity import Actor
    from gatekeeper.core.claims import Claim
    from gatekeeper.store.database import Database, Session

__all__ = ["claim_prefix", "finish"]

_log = structlog.get_logger()


def claim_prefix(run_id: str) -> str:
    """Begin of the ids of a run's claims in the ledger."""
    return f"run/{run_id}/"


def finish(
    db: Database,
    folder: Path,
    actor: Actor,
    run_id: str,
    fence: int,
    *,
    result: Mapping[str, Any],
    evidence: Mapping[str, str],
    info: Mapping[str, Any] | None,
    acceptance: Sequence[Mapping[str, Any]],
) -> RunRecord:
    """Take a worker's result and end the run.

    Each claim is recomputed from the uploaded evidence first: a figure that its own evidence does
    not reproduce never enters the ledger. The transaction then checks the fence again. Where another
    inconclusive run of the same equivalence gate has ended meanwhile, only a FAIL is stored: else the
    run goes back to the queue, to go on from that one.

    Raises:
        FencedOut: the run belongs to another worker, or has ended.
        InputError: the result is not of this run's gate, or its evidence is not what was uploaded.
        EvidenceError: a PASS or FAIL without evidence, or a claim that cannot be recomputed.
    """
    verdict = from_json(result)
    with db.write() as session:
        held = runs.hold(session, run_id, fence)
        tables = {row.table: row for row in results.evidence(session, run_id, fence=fence)}
    if verdict.gate != held.gate:
        raise InputError(
            f"differs from the run's gate {held.gate}",
            field="result.gate",
            value=verdict.gate,
            remedy="finish the run that was claimed",
        )
    _check_evidence(verdict, evidence, tables)
    claims = _ledger_claims(run_id, verdict, tables)
    files = EvidenceFolder(folder, db)
    _check_claims(claims, files)
    if verdict.outcome in {Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL}:
        _check_continued(held, tables, files)
    record = _record(held, verdict)
    # Priced before it is stored, so that the route is decided once and not first without a value.
    try:
        priced = prepare_pricing(db, folder, held.route, result=record)
    except GatekeeperError as error:
        # The measurement is sound and stays; without a pricing its value is unknown.
        _log.error("route could not be priced", route=held.route, error=str(error))
        priced = None
    replaced = []
    with db.write() as session:
        overtaken = _overtaken(session, held, verdict)
        if overtaken is not None:
            return runs.requeue(session, run_id, fence, error=overtaken)
        state = "cancelled" if verdict.outcome is Outcome.CANCELLED else "finished"
        run = runs.finish(session, run_id, fence, state=state, info=info)
        policy = catalog.policy(session, run.policy)
        ttl_s = float(policy.document["evidence_ttl_s"]) if policy is not None else 0.0
        results.add_gate_result(session, record, ttl_s=ttl_s)
        results.add_claims(session, claims, run_id=run_id)
        results.add_rounds(
            session,
            run_id=run_id,
            route=run.route,
            artifact=run.artifact,
            counts=[(str(row.get("slice") or run.slice), row) for row in acceptance],
        )
        stale = results.drop_stale_evidence(session, run_id, fence)
        kept = {row.path for row in tables.values()}
        access.audit(
            session,
            actor=actor,
            action="run.finish",
            target=run_id,
            detail={"outcome": verdict.outcome.value, "gate": run.gate, "route": run.route},
        )
        if priced is not None:
            replaced.append(store_pricing(session, priced))
        derive(session, [run.route])
    drop_replaced(db, folder, replaced)
    for row in stale:
        if row.path not in kept:
            (folder / row.path).unlink(missing_ok=True)
    return run


def _check_continued(
    run: RunRecord, tables: Mapping[str, EvidenceRecord], files: EvidenceFolder
) -> None:
    if run.gate != GATE or not tables.keys() >= set(equivalence.TABLES):
        if run.parameters.get("continues"):
            raise EvidenceError(
                "lacks tables of a run that goes on from another",
                field="evidence",
                value=sorted(tables),
                remedy="run a worker of the same release as the server",
            )
        return
    own = {name: files.load(name, row.sha256) for name, row in tables.items()}
    equivalence.check_continued(run.parameters.get("continues"), own, files.load)


def _overtaken(session: Session, run: RunRecord, verdict: GateResult) -> str | None:
    """Why this run's verdict is not to be stored: two that go on from one run would be two draws.

    A FAIL is stored all the same: whoever found a fault found it.
    """
    artifact = catalog.artifact(session, run.artifact)
    if verdict.outcome in {Outcome.CANCELLED, Outcome.FAIL} or artifact is None:
        return None
    found = continued(session, run, artifact.document)
    if found is None or found == run.parameters.get("continues"):
        return None
    return f"run {found['run']} of the same gate ended meanwhile: this one goes on from it"


def _record(run: RunRecord, verdict: GateResult) -> GateRecord:
    # The ledger holds the claims; a second copy here could only disagree with it.
    return GateRecord(
        run=run.id,
        route=run.route,
        gate=run.gate,
        artifact=run.artifact,
        policy=run.policy,
        outcome=verdict.outcome.value,
        document=to_json(replace(verdict, claims=())),
        finished_at=0.0,
        expires_at=0.0,
    )


def _check_evidence(
    verdict: GateResult, announced: Mapping[str, str], tables: Mapping[str, EvidenceRecord]
) -> None:
    stored = {name: row.sha256 for name, row in tables.items()}
    for name in sorted({*announced, *stored}):
        if announced.get(name) != stored.get(name):
            raise InputError(
                f"was uploaded with digest {stored.get(name)}",
                field=f"evidence.{name}",
                value=announced.get(name),
                remedy="announce exactly the tables uploaded under this fence",
            )
    if verdict.outcome in {Outcome.PASS, Outcome.FAIL} and not tables:
        raise EvidenceError(
            f"{verdict.outcome} comes without evidence",
            field="evidence",
            remedy="upload the tables that the result rests on",
        )


def _ledger_claims(
    run_id: str, verdict: GateResult, tables: Mapping[str, EvidenceRecord]
) -> list[Claim]:
    claims = []
    for claim in verdict.claims:
        inputs = dict(claim.inputs)
        equation = EQUATIONS.get(claim.equation)
        if equation is not None and equation.table:
            name = inputs.get("table")
            if not isinstance(name, str) or name not in tables:
                raise InputError(
                    "names no uploaded table",
                    field=f"{claim.id}.inputs.table",
                    value=name,
                    remedy="upload the table first",
                )
            inputs["evidence"] = tables[name].sha256
        claims.append(replace(claim, id=claim_prefix(run_id) + claim.id, inputs=inputs))
    return claims


def _check_claims(claims: Sequence[Claim], evidence: EvidenceFolder) -> None:
    for checked in verify(claims, evidence.load):
        if not checked.agrees:
            raise EvidenceError(
                f"is not reproduced by its evidence: {checked.reason}",
                field=checked.claim.id,
                value=checked.claim.value,
                remedy="report this as a defect of the gate; nothing was stored",
            )
