"""Schedules: what may be stored, and what a change means for times that are still open."""

from __future__ import annotations

import difflib
from dataclasses import asdict, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

from gatekeeper.actions.identity import new_id, sees
from gatekeeper.core.documents import plain
from gatekeeper.core.names import check_name
from gatekeeper.core.schedules import MISSED, Slot, slots, timetable
from gatekeeper.errors import Forbidden, InputError, NotFound
from gatekeeper.store import access, catalog
from gatekeeper.store import schedules as store
from gatekeeper.store.database import now
from gatekeeper.store.schedules import FireRecord, ScheduleRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gatekeeper.actions.identity import Actor
    from gatekeeper.core.schedules import Rule
    from gatekeeper.store.database import Database, Session

__all__ = [
    "delete_schedule",
    "drop_schedule",
    "get_schedule",
    "in_scope",
    "list_fires",
    "list_schedules",
    "load_zone",
    "pause_schedule",
    "put_schedule",
    "resume_schedule",
    "set_schedule",
    "unrecorded",
    "upcoming",
]

_NO_ZONES = {"localtime", "Factory"}
"""Files beside the zones that mean whatever one machine was set to."""


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - _NO_ZONES


def load_zone(name: str) -> ZoneInfo:
    """Zone of the IANA time zone database.

    Raises:
        InputError: it has no zone of this name.
    """
    if name not in _zones():
        near = difflib.get_close_matches(name, _zones(), n=1)
        raise InputError(
            "is not a zone of the IANA database",
            field="zone",
            value=name,
            remedy=f"use {near[0]}" if near else "use a name such as UTC or Europe/Berlin",
        )
    return ZoneInfo(name)


def put_schedule(db: Database, actor: Actor, name: str, rule: Rule) -> ScheduleRecord:
    """Create or replace a schedule. A paused one stays paused.

    Slots count from now on, or go on where cron and zone are as they were. Slots of another cron
    that are still open are recorded as missed.

    Raises:
        InputError: a name, or a zone that there is not.
        NotFound: no such route.
    """
    check_name("name", name)
    with db.write() as session:
        return set_schedule(session, actor, name, rule)


def set_schedule(session: Session, actor: Actor, name: str, rule: Rule) -> ScheduleRecord:
    """Create or replace a schedule in the caller's transaction, as ``put_schedule`` says.

    Raises:
        InputError: a zone that there is not.
        NotFound: no such route.
        Forbidden: the name is taken by a schedule of a route that the actor's token is not for.
    """
    zone = None if rule.zone is None else load_zone(rule.zone)
    if catalog.route(session, rule.route) is None:
        raise NotFound(
            "is not a route",
            field="route",
            value=rule.route,
            remedy="see gatekeeper route list",
        )
    before = store.get(session, name, lock=True)
    if before is not None and not sees(actor, before.route):
        raise Forbidden(
            "is a schedule of a route outside the token's scope",
            field="name",
            value=name,
            remedy="choose another name",
        )
    at = now(session)
    kept = before is not None and (before.cron, before.zone) == (rule.cron, rule.zone)
    if before is not None and not kept:
        _close(session, before, at, "the schedule was changed before it was served")
    record = ScheduleRecord(
        id=new_id(session) if before is None else before.id,
        name=name,
        route=rule.route,
        gates=None if rule.gates is None else list(rule.gates),
        cron=rule.cron,
        zone=rule.zone,
        jitter_s=rule.jitter_s,
        before_expiry_s=rule.before_expiry_s,
        on_new_version=rule.on_new_version,
        priority=rule.priority,
        revision=1 if before is None else before.revision,
        created_at=at if before is None else before.created_at,
        created_by=actor.name if before is None else before.created_by,
        updated_at=at,
        paused_at=None if before is None else before.paused_at,
        since_at=before.since_at if before is not None and kept else at,
        next_at=None,
        seen_artifact=_seen(session, before, rule),
    )
    if zone is not None and record.paused_at is None:
        record = replace(record, next_at=_next_due(session, record))
    stored = store.add(session, record) if before is None else store.replace(session, record)
    access.audit(
        session,
        actor=actor,
        action="schedule.set",
        target=name,
        detail={"from": plain(before) if before else None, "to": plain(stored)},
    )
    return stored


def _seen(session: Session, before: ScheduleRecord | None, rule: Rule) -> str | None:
    """Version from which on a new one counts: none is missed by setting the schedule again."""
    if not rule.on_new_version:
        return None
    if before is not None and before.route == rule.route and before.seen_artifact is not None:
        return before.seen_artifact
    found = store.versions(session, [rule.route]).get(rule.route)
    if found is None:
        raise NotFound(
            "points at an artifact or policy that is not there",
            field="route",
            value=rule.route,
            remedy="set the route again",
        )
    return found.artifact


def unrecorded(session: Session, record: ScheduleRecord) -> Iterator[Slot]:
    """Slots of a schedule after the last that is recorded."""
    if record.cron is None or record.zone is None:
        return iter(())
    last = store.last_slot(session, record.id)
    return timetable(
        record.cron,
        load_zone(record.zone),
        after=record.since_at if last is None else max(record.since_at, last),
        jitter_s=record.jitter_s,
        key=record.id,
    )


def _next_due(session: Session, record: ScheduleRecord) -> float | None:
    slot = next(unrecorded(session, record), None)
    return None if slot is None else slot.due_at


def _close(session: Session, record: ScheduleRecord, at: float, why: str) -> None:
    """Record as missed what has come by ``at`` and was not served, jitter or not."""
    if record.paused_at is not None or record.cron is None or record.zone is None:
        return
    last = store.last_slot(session, record.id)
    after = record.since_at if last is None else max(record.since_at, last)
    times = []
    for slot in slots(record.cron, load_zone(record.zone), after=after):
        if slot > at:
            break
        times.append(slot)
    store.add_missed(session, record.id, times, outcome=MISSED, note=why)


def pause_schedule(db: Database, actor: Actor, name: str) -> ScheduleRecord:
    """Let a schedule rest: its slots are none until it is resumed. Pausing again changes nothing.

    Raises:
        NotFound: no such schedule.
    """
    with db.write() as session:
        record = _require(store.get(session, name, lock=True), name)
        if record.paused_at is not None:
            return record
        at = now(session)
        _close(session, record, at, "the schedule was paused before it was served")
        record = store.replace(session, replace(record, paused_at=at, updated_at=at, next_at=None))
        access.audit(session, actor=actor, action="schedule.pause", target=name, detail={})
    return record


def resume_schedule(db: Database, actor: Actor, name: str) -> ScheduleRecord:
    """Let a paused schedule go on with its next slot; one that is not paused stays as it is.

    Raises:
        NotFound: no such schedule.
    """
    with db.write() as session:
        record = _require(store.get(session, name, lock=True), name)
        if record.paused_at is None:
            return record
        at = now(session)
        record = replace(record, paused_at=None, updated_at=at, since_at=at)
        record = store.replace(session, replace(record, next_at=_next_due(session, record)))
        access.audit(session, actor=actor, action="schedule.resume", target=name, detail={})
    return record


def delete_schedule(db: Database, actor: Actor, name: str) -> ScheduleRecord:
    """Remove a schedule with its history. Runs that it queued stay.

    Raises:
        NotFound: no such schedule.
    """
    with db.write() as session:
        return drop_schedule(session, actor, name)


def drop_schedule(session: Session, actor: Actor, name: str) -> ScheduleRecord:
    """Remove a schedule in the caller's transaction, as ``delete_schedule`` says.

    Raises:
        NotFound: no such schedule.
    """
    record = _require(store.get(session, name, lock=True), name)
    fires = store.delete_schedule(session, record.id)
    access.audit(
        session,
        actor=actor,
        action="schedule.delete",
        target=name,
        detail={"schedule": asdict(record), "fires": fires},
    )
    return record


def get_schedule(db: Database, name: str) -> ScheduleRecord:
    """Schedule by name.

    Raises:
        NotFound: no such schedule.
    """
    with db.read() as session:
        return _require(store.get(session, name), name)


def in_scope(db: Database, actor: Actor, name: str) -> None:
    """Check that an actor's token is for the schedule's route.

    Raises:
        NotFound: no such schedule, or one of another route, which must look the same.
    """
    if actor.routes is not None:
        record = get_schedule(db, name)
        _require(record if sees(actor, record.route) else None, name)


def _require(record: ScheduleRecord | None, name: str) -> ScheduleRecord:
    if record is None:
        raise NotFound(
            "is not a schedule", field="name", value=name, remedy="see gatekeeper schedule list"
        )
    return record


def list_schedules(
    db: Database, *, after: str | None, limit: int, route: str | None
) -> list[ScheduleRecord]:
    """Page of schedules by name."""
    with db.read() as session:
        return store.listing(session, after=after, limit=limit, route=route)


def upcoming(db: Database, record: ScheduleRecord, count: int) -> list[Slot]:
    """Next slots of a schedule that is not paused."""
    if record.paused_at is not None:
        return []
    with db.read() as session:
        return list(islice(unrecorded(session, record), count))


def list_fires(db: Database, name: str, *, after: int | None, limit: int) -> list[FireRecord]:
    """Page of what became of a schedule's times, newest record first.

    Raises:
        NotFound: no such schedule.
    """
    with db.read() as session:
        record = _require(store.get(session, name), name)
        return store.fires(session, record.id, after=after, limit=limit)
