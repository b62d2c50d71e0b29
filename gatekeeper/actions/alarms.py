"""Alarms of the live watch, and what ends them: evidence that was begun after they were raised."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.identity import new_id
from gatekeeper.core.lease import BYPASS
from gatekeeper.core.verdicts import Outcome
from gatekeeper.core.watch_alarms import REARMED_BY, Alarm, barred
from gatekeeper.store import access, decisions, rounds, runs
from gatekeeper.store.rounds import AlarmRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.actions.identity import Actor
    from gatekeeper.core.policies import Verdict
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import OverrideRecord

__all__ = ["ListedAlarm", "bar", "begun_at", "list_alarms", "raise_alarms"]

_MOST_CONTINUED = 100
"""Longest chain of inconclusive runs that is followed back; beyond it nothing counts as begun."""


@dataclass(frozen=True)
class ListedAlarm:
    """An alarm, and the gates that have not passed since; None where its artifact is not decided on."""

    record: AlarmRecord
    needed: tuple[str, ...] | None


def bar(
    session: Session,
    verdict: Verdict,
    *,
    route: str,
    artifact: str,
    override: OverrideRecord | None,
) -> Verdict:
    """Turn an enable into a bypass where an alarm stands.

    An override that was set after an alarm was raised is somebody's answer to it, and prevails.
    """
    if verdict.action == BYPASS:
        return verdict
    found = rounds.newest_alarms(session, route, artifact)
    if override is not None and verdict.reason == "override":
        found = [record for record in found if record.raised_at > override.created_at]
    return barred(
        verdict,
        [
            Alarm(
                record.reason,
                record.explanation,
                datetime.fromtimestamp(record.raised_at, UTC),
                needed(session, record, verdict.gates),
            )
            for record in found
        ],
    )


def needed(
    session: Session, alarm: AlarmRecord, gates: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """Gates that have not passed on evidence begun after the alarm; ``gates`` as in a lease."""
    return tuple(
        row["gate"]
        for row in gates
        if row["gate"] in REARMED_BY[alarm.reason]
        and row["mandatory"]
        and not _passed_since(session, row, alarm.raised_at)
    )


def _passed_since(session: Session, row: Mapping[str, Any], at: float) -> bool:
    if row["outcome"] != str(Outcome.PASS) or row["run_id"] is None:
        return False
    begun = begun_at(session, str(row["run_id"]))
    return begun is not None and begun > at


def begun_at(session: Session, run_id: str) -> float | None:
    """When the oldest of a result's evidence began: a run may go on from earlier ones."""
    oldest: float | None = None
    for _ in range(_MOST_CONTINUED):
        run = runs.get(session, run_id)
        if run is None or run.started_at is None:
            return None
        oldest = run.started_at if oldest is None else min(oldest, run.started_at)
        before = run.parameters.get("continues")
        if not before:
            return oldest
        run_id = str(before["run"])
    return None


def raise_alarms(
    session: Session,
    wanted: Iterable[tuple[str, str]],
    *,
    route: str,
    artifact: str,
    source: str,
    actor: Actor,
) -> list[AlarmRecord]:
    """Store (reason, explanation) alarms, but none whose like still stands."""
    known = {record.reason: record for record in rounds.newest_alarms(session, route, artifact)}
    decision = decisions.latest_decision(session, route)
    gates = [] if decision is None else decision.document["gates"]
    added = []
    for reason, explanation in dict(wanted).items():
        before = known.get(reason)
        if before is not None and needed(session, before, gates):
            continue
        record = AlarmRecord(
            id=new_id(session),
            route=route,
            artifact=artifact,
            reason=reason,
            explanation=explanation,
            source=source,
            actor=actor.name,
            raised_at=0.0,
        )
        added.append(rounds.add_alarm(session, record))
        access.audit(
            session,
            actor=actor,
            action="watch.alarm",
            target=route,
            detail={"reason": reason, "explanation": explanation, "source": source},
        )
    return added


def list_alarms(
    db: Database, *, route: str | None, after: str | None, limit: int
) -> list[ListedAlarm]:
    """Page of alarms, newest first."""
    listed = []
    with db.read() as session:
        for record in rounds.alarms(session, route=route, after=after, limit=limit):
            decision = decisions.latest_decision(session, record.route)
            present = decision is not None and decision.artifact == record.artifact
            gates = decision.document["gates"] if decision is not None and present else []
            listed.append(ListedAlarm(record, needed(session, record, gates) if present else None))
    return listed
