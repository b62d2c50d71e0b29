"""Gate runs in the queue: claim, keep alive, hand back, cancel, reap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from gatekeeper.actions.decide import derive
from gatekeeper.actions.identity import SYSTEM, Actor, sees
from gatekeeper.actions.submit import outcome_load, with_continued
from gatekeeper.core.running_pair import SERVERS_ENGINE
from gatekeeper.core.verdicts import GateResult, Outcome, Part, to_json
from gatekeeper.errors import Conflict, GatekeeperError, NotFound
from gatekeeper.store import access, catalog, results, runs
from gatekeeper.store.records import GateRecord, RunRecord
from gatekeeper.store.runs import fenced_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.protocols import Executor
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import EvidenceRecord

__all__ = [
    "cancel",
    "check_fence",
    "claim",
    "count_by_state",
    "dispatch",
    "fail",
    "get_run",
    "heartbeat",
    "in_scope",
    "list_runs",
    "outcomes",
    "reap",
    "run_details",
    "store_error",
    "waiting_for",
]

STATES = ("pending", "running", "finished", "failed", "cancelled")

_log = structlog.get_logger()


def get_run(db: Database, run_id: str) -> RunRecord:
    """Run by id.

    Raises:
        NotFound: no such run.
    """
    with db.read() as session:
        return _require(runs.get(session, run_id), run_id)


def in_scope(db: Database, actor: Actor, run_id: str) -> None:
    """Check that an actor's token is for the run's route.

    Raises:
        NotFound: no such run, or one of another route, which must look the same.
    """
    if actor.routes is not None:
        run = get_run(db, run_id)
        _require(run if sees(actor, run.route) else None, run_id)


def _require(run: RunRecord | None, run_id: str) -> RunRecord:
    if run is None:
        raise NotFound(
            "is not a run's id", field="run", value=run_id, remedy="see gatekeeper gate list"
        )
    return run


def check_fence(db: Database, run_id: str, fence: int) -> None:
    """Refuse a stale fence before its evidence is received; the write checks again.

    Raises:
        NotFound: no such run.
        FencedOut: the run belongs to another worker, or has ended.
    """
    run = get_run(db, run_id)
    if (run.state, run.fence) != ("running", fence):
        raise fenced_out(fence)


def count_by_state(db: Database) -> dict[str, int]:
    """Number of runs in each state, zero where there is none."""
    with db.read() as session:
        counted = runs.count_by_state(session)
    return {state: counted.get(state, 0) for state in STATES}


def oldest_pending_s(db: Database) -> float | None:
    """Seconds for which the oldest pending run has waited; None where none does."""
    with db.read() as session:
        return runs.oldest_pending_s(session)


def list_runs(
    db: Database, *, after: str | None, limit: int, route: str | None, state: str | None
) -> list[RunRecord]:
    """Page of runs, newest first."""
    with db.read() as session:
        return runs.listing(session, after=after, limit=limit, route=route, state=state)


def claim(
    db: Database,
    *,
    worker: str,
    engines: Sequence[str],
    devices: Sequence[str],
    lease_s: float,
    run_id: str | None,
) -> dict[str, Any] | None:
    """Give a worker its next run with all that it needs to know; None when nothing matches.

    Raises:
        NotFound: ``run_id`` names no run.
        Conflict: ``run_id`` names a run that cannot be claimed, or not by this worker.
    """
    with db.write() as session:
        run = runs.claim(
            session,
            owner=worker,
            engines=engines,
            devices=devices,
            lease_s=lease_s,
            run_id=run_id,
        )
        if run is None:
            if run_id is not None:
                _refuse(_require(runs.get(session, run_id), run_id), engines, devices)
            return None
        artifact = catalog.artifact(session, run.artifact)
        policy = catalog.policy(session, run.policy)
        if run.gate == "outcome" and artifact is not None and policy is not None:
            # The serving gate may have spoken since the run was queued, as when both were at once.
            load = outcome_load(session, run.route, artifact, policy)
            values = {"parameters": {**run.parameters, **load}}
            run = runs.hold(session, run.id, run.fence, values)
        if run.gate == "equivalence" and artifact is not None:
            # A run before it may have ended since: that is what this one goes on from.
            fresh = with_continued(session, run, artifact.document)
            run = runs.hold(session, run.id, run.fence, {"parameters": fresh.parameters})
    if artifact is None or policy is None:
        raise NotFound("lost its artifact or policy", field="run", value=run.id)
    return {
        "id": run.id,
        "gate": run.gate,
        "route": run.route,
        "slice": run.slice,
        "artifact": {"digest": artifact.digest, "document": artifact.document},
        "policy": {"name": policy.name, "digest": policy.digest, "document": policy.document},
        "parameters": run.parameters,
        "attempt": run.attempt,
        "fence": run.fence,
        "lease_until": run.lease_until,
        "cancel_requested": run.cancel_requested,
        "sampling": run.sampling,
        "slo": run.slo,
    }


def _refuse(run: RunRecord, engines: Sequence[str], devices: Sequence[str]) -> None:
    if run.state == "pending" and not run.cancel_requested:
        raise Conflict(
            f"needs engine {run.engine} on {run.device}; "
            f"this worker offers {', '.join(engines)} on {', '.join(devices)}",
            field="run_id",
            value=run.id,
            remedy="start a worker with that engine",
        )
    raise Conflict(
        f"is {run.state}" + (f" by {run.owner}" if run.state == "running" else ""),
        field="run_id",
        value=run.id,
        remedy="claim without run_id to get another",
    )


def heartbeat(
    db: Database, run_id: str, fence: int, progress: Mapping[str, Any] | None
) -> RunRecord:
    """Renew a lease and note the progress.

    Raises:
        FencedOut: the run belongs to another worker, or has ended.
    """
    with db.write() as session:
        return runs.renew(session, run_id, fence, progress=progress)


def fail(
    db: Database, actor: Actor, run_id: str, fence: int, *, error: str, retry: bool
) -> RunRecord:
    """Take a worker's word that it could not finish: queue the next attempt, or end as ERROR.

    Raises:
        FencedOut: the run belongs to another worker, or has ended.
    """
    with db.write() as session:
        held = runs.hold(session, run_id, fence)
        if held.cancel_requested:
            run = runs.finish(session, run_id, fence, state="cancelled", error=error)
        elif retry and held.attempt < held.max_attempts:
            run = runs.requeue(session, run_id, fence, error=error)
        else:
            run = runs.finish(session, run_id, fence, state="failed", error=error)
            store_error(session, run, error)
        access.audit(
            session,
            actor=actor,
            action="run.fail",
            target=run_id,
            detail={"error": error, "state": run.state, "attempt": held.attempt},
        )
    return run


def store_error(session: Session, run: RunRecord, error: str) -> None:
    """Give a failed run its ERROR result: the gate could not be judged, so nothing is enabled."""
    result = GateResult(
        gate=run.gate,
        outcome=Outcome.ERROR,
        parts=(Part("run", Outcome.ERROR, error),),
        still_needed="a run that completes",
    )
    policy = catalog.policy(session, run.policy)
    ttl_s = float(policy.document["evidence_ttl_s"]) if policy is not None else 0.0
    record = GateRecord(
        run=run.id,
        route=run.route,
        gate=run.gate,
        artifact=run.artifact,
        policy=run.policy,
        outcome=result.outcome.value,
        document=to_json(result),
        finished_at=0.0,
        expires_at=0.0,
    )
    results.add_gate_result(session, record, ttl_s=ttl_s)
    derive(session, [run.route])


def cancel(db: Database, actor: Actor, run_id: str) -> RunRecord:
    """Cancel a pending run at once, or ask the worker of a running one to stop.

    Raises:
        NotFound: no such run.
        Conflict: it has ended.
    """
    with db.write() as session:
        run = runs.cancel(session, run_id)
        if run is None:
            ended = _require(runs.get(session, run_id), run_id)
            raise Conflict(
                f"has already ended ({ended.state})",
                field="run",
                value=run_id,
                remedy="submit a new run",
            )
        access.audit(
            session,
            actor=actor,
            action="run.cancel",
            target=run_id,
            detail={"state": run.state},
        )
    return run


def reap(db: Database) -> list[RunRecord]:
    """Return runs of vanished workers to the queue; those out of attempts end as ERROR."""
    with db.write() as session:
        reaped = runs.reap(session)
        for run in reaped:
            if run.state == "failed":
                store_error(session, run, f"{run.error}, {run.attempt} times")
            access.audit(
                session,
                actor=SYSTEM,
                action="run.reap",
                target=run.id,
                detail={"state": run.state, "attempt": run.attempt, "owner": run.owner},
            )
    return reaped


def dispatch(db: Database, executor: Executor) -> int:
    """Ask the executor for a worker for every pending run not yet handed to it.

    A failing executor leaves the run pending, for any worker that comes by and for the next
    attempt: the runs table is the truth, the executor only launches.
    """
    with db.write() as session:
        waiting = runs.undispatched(session)
        for run in waiting:
            runs.set_job(session, run.id, executor=executor.name, job_id=None)
    started = 0
    for run in waiting:
        try:
            job = executor.submit(run.id, run.attempt, run.requirements)
        except (GatekeeperError, OSError) as error:
            _log.warning("executor could not start a worker", run=run.id, error=str(error))
            continue
        with db.write() as session:
            runs.set_job(session, run.id, executor=executor.name, job_id=job)
        started += 1
    return started


def waiting_for(run: RunRecord) -> str | None:
    """Why a pending run has not started, in words; None once it has."""
    if run.state != "pending":
        return None
    again = f"; the attempt before ended: {run.error}" if run.error else ""
    if run.requirements["engine"] == SERVERS_ENGINE:
        return f"any worker of this release: gatekeeper worker{again}"
    extra = {"reference": "torch"}.get(run.requirements["engine"], run.requirements["engine"])
    return (
        f"a worker with engine {run.engine} on {run.device}: "
        f"pip install 'gatekeeper[{extra}]', then gatekeeper worker{again}"
    )


def outcomes(db: Database, run_ids: Sequence[str]) -> dict[str, str]:
    """Outcome of each run that has one."""
    with db.read() as session:
        return results.outcomes(session, run_ids)


def run_details(
    db: Database, run_id: str
) -> tuple[RunRecord, GateRecord | None, list[EvidenceRecord]]:
    """Run with its result and its evidence tables.

    Raises:
        NotFound: no such run.
    """
    with db.read() as session:
        run = _require(runs.get(session, run_id), run_id)
        return run, results.gate_result(session, run_id), results.evidence(session, run_id)
