"""What schedules have to do now: found in one reading, done in one transaction each.

Any number of replicas may look and fire at a time, stop in between, or act on an old look. A time is
taken by inserting its fire, which succeeds once; its runs are queued in the same transaction.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from gatekeeper.actions.identity import Actor
from gatekeeper.actions.schedules import unrecorded
from gatekeeper.actions.submit import enqueue
from gatekeeper.core.policies import Policy
from gatekeeper.core.running_pair import SERVER_GATES, is_running_pair
from gatekeeper.core.schedules import (
    BEFORE_EXPIRY,
    CRON,
    GATES,
    MISSED,
    NEW_VERSION,
    SKIPPED,
    due,
    lateness,
)
from gatekeeper.errors import Conflict, GatekeeperError, InputError
from gatekeeper.store import catalog
from gatekeeper.store import schedules as store
from gatekeeper.store.database import now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.schedules import FireRecord, ScheduleRecord

__all__ = ["Task", "fire", "fire_due", "look"]

BATCH = 500
"""Slots of one schedule sorted out at once: a year of minutes must not hold up the others."""

_log = structlog.get_logger()


@dataclass(frozen=True)
class Task:
    """One thing to do for a schedule: record ``missed``, take ``fire_at``, queue ``gates``.

    ``gates`` None means those of the schedule. ``version`` is the new artifact that set it off.
    """

    schedule: ScheduleRecord
    trigger: str
    fire_at: float | None
    outcome: str
    missed: tuple[float, ...] = ()
    next_at: float | None = None
    gates: tuple[str, ...] | None = None
    version: str | None = None


def fire_due(db: Database) -> list[FireRecord]:
    """Look once, and do what is due; what cannot be done now is due again at the next look."""
    fired = []
    for task in look(db):
        try:
            record = fire(db, task)
        except Conflict as error:
            # The schedule was deleted since it was read.
            _log.warning("schedule not fired", schedule=task.schedule.name, error=str(error))
            continue
        if record is not None:
            fired.append(record)
    return fired


def look(db: Database, *, at: float | None = None) -> list[Task]:
    """Find what is due ``at`` (seconds since 1970; the database's clock by default)."""
    with db.read() as session:
        at = now(session) if at is None else at
        found = store.candidates(session, at=at)
        tasks = [task for record in found for task in _cron_task(session, record, at)]
        watching = [r for r in found if r.on_new_version or r.before_expiry_s is not None]
        if watching:
            versions = store.versions(session, [record.route for record in watching])
            tasks += _new_versions(watching, versions, at)
            tasks += _expiring(session, watching, versions, at)
    return tasks


def _cron_task(session: Session, record: ScheduleRecord, at: float) -> list[Task]:
    if record.next_at is None or record.next_at > at:
        return []
    try:
        times = unrecorded(session, record)
    except InputError as error:
        # This machine's zone database differs from the one that the schedule was set with.
        _log.error("schedule cannot be read", schedule=record.name, error=str(error))
        return []
    plan = due(times, now=at, most=BATCH)
    return [
        Task(
            record,
            CRON,
            plan.at,
            plan.outcome,
            missed=plan.missed,
            next_at=plan.next_at,
        )
    ]


def _new_versions(
    watching: Iterable[ScheduleRecord], versions: Mapping[str, store.Version], at: float
) -> list[Task]:
    tasks = []
    for record in watching:
        version = versions.get(record.route)
        if record.on_new_version and version and version.artifact != record.seen_artifact:
            # A change that a pause hid counts from its end.
            late_s = at - max(version.changed_at, record.since_at)
            tasks.append(Task(record, NEW_VERSION, at, lateness(late_s), version=version.artifact))
    return tasks


def _expiring(
    session: Session,
    watching: Iterable[ScheduleRecord],
    versions: Mapping[str, store.Version],
    at: float,
) -> list[Task]:
    """One task for the gates of a schedule whose evidence lapses at one time, if soon enough."""
    renewing = [r for r in watching if r.before_expiry_s is not None and r.route in versions]
    if not renewing:
        return []
    by_route = store.governing(session, {r.route: versions[r.route] for r in renewing})
    tasks = []
    for record in renewing:
        governing = by_route.get(record.route, {})
        if any(result.outcome == "FAIL" for result in governing.values()):
            continue  # A FAIL does not lapse, so there is no evidence to keep alive.
        at_once: dict[float, list[str]] = {}
        for gate, result in governing.items():
            when = result.expires_at - (record.before_expiry_s or 0.0)
            if when <= at and (record.gates is None or gate in record.gates):
                at_once.setdefault(when, []).append(gate)
        busy = store.in_flight(session, record.route, versions[record.route]) if at_once else {}
        for when, gates in sorted(at_once.items()):
            wanted = tuple(gate for gate in GATES if gate in gates and gate not in busy)
            if wanted and not store.is_recorded(session, record.id, BEFORE_EXPIRY, when):
                outcome = lateness(at - max(when, record.since_at))
                tasks.append(Task(record, BEFORE_EXPIRY, when, outcome, gates=wanted))
    return tasks


def fire(db: Database, task: Task) -> FireRecord | None:
    """Do one task, whole or not at all; None where another replica has done it.

    Raises:
        Conflict: the schedule is no more.
    """
    record = task.schedule
    with db.write() as session:
        if task.version is not None and not store.see_version(session, record, task.version):
            return None
        store.add_missed(session, record.id, task.missed, outcome=MISSED, note=None)
        fired = None
        if task.fire_at is not None:
            taken = store.add_fire(
                session, record.id, task.trigger, task.fire_at, outcome=task.outcome
            )
            if taken is not None:
                queued, note = _queue(session, task)
                fired = store.settle_fire(
                    session,
                    taken,
                    outcome=task.outcome if queued else SKIPPED,
                    runs=queued,
                    note=note,
                )
        if task.trigger == CRON:
            store.look_again(session, record, task.next_at)
    if fired is not None:
        _log.info(
            "schedule fired" if fired.runs else "schedule queued nothing",
            schedule=record.name,
            trigger=fired.trigger,
            outcome=fired.outcome,
            runs=fired.runs,
            note=fired.note,
        )
    return fired


def _queue(session: Session, task: Task) -> tuple[list[str], str | None]:
    """Queue the task's runs: all of them or, with the reason, none; and what was left out."""
    record = task.schedule
    version = store.versions(session, [record.route]).get(record.route)
    if version is None:
        return [], f"route {record.route} points at an artifact or policy that is not there"
    wanted = task.gates or record.gates or _demanded(session, version)
    if task.trigger == NEW_VERSION:
        wanted = _unproven(session, record.route, version, wanted)
        if not wanted:
            return [], f"every gate has passed version {version.artifact} already"
    busy = store.in_flight(session, record.route, version)
    waits = [f"{gate} is in flight as run {busy[gate]}" for gate in wanted if gate in busy]
    actor = Actor(f"schedule {record.name}", "operator")
    try:
        with session.begin_nested():
            queued = [
                enqueue(
                    session,
                    actor,
                    route=record.route,
                    gate=gate,
                    parameters={},
                    priority=record.priority,
                    key=secrets.token_hex(16),
                ).id
                for gate in wanted
                if gate not in busy
            ]
    except GatekeeperError as error:
        # Without one of its gates the route stays in bypass: the others would measure for nothing.
        return [], str(error)
    return queued, "; ".join(waits) or None


def _demanded(session: Session, version: store.Version) -> Sequence[str]:
    """Gates that the policy demands of the artifact, in the order in which they are queued."""
    artifact = catalog.artifact(session, version.artifact)
    policy = catalog.policy(session, version.policy)
    if artifact is None or policy is None:
        return ()
    demanded = {*Policy.from_dict(policy.document).mandatory_gates}
    if artifact.contract == "approximate":
        demanded.add("outcome")
    possible = SERVER_GATES if is_running_pair(artifact.document) else GATES
    return [gate for gate in possible if gate in demanded]


def _unproven(
    session: Session, route: str, version: store.Version, wanted: Sequence[str]
) -> Sequence[str]:
    """Those of the gates without a PASS that still counts: a way back needs no run."""
    at = now(session)
    results = store.governing(session, {route: version}).get(route, {})
    good = {gate for gate, one in results.items() if one.outcome == "PASS" and at < one.expires_at}
    return [gate for gate in wanted if gate not in good]
