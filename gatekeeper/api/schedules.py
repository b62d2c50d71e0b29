"""Schedules: when routes are gated again, and what became of each time."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from gatekeeper.actions import schedules
from gatekeeper.actions.decide import stamp
from gatekeeper.actions.identity import within
from gatekeeper.api.models import Body, Name
from gatekeeper.api.services import (
    After,
    Limit,
    RouteReader,
    ScopedOperator,
    ScopedReader,
    Services,
    Using,
    page,
)
from gatekeeper.api.views import plain_view
from gatekeeper.core.schedules import Rule, local_time
from gatekeeper.errors import InputError
from gatekeeper.store.schedules import ScheduleRecord

router = APIRouter(prefix="/v1", tags=["schedules"])

UPCOMING = 5
"""Slots shown ahead."""

_Short = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class ScheduleBody(Body):
    """When to gate a route again; no ``gates`` means all that its policy demands then."""

    route: Name
    cron: _Short | None = None
    zone: _Short | None = None
    jitter_s: Annotated[float, Field(ge=0)] = 0.0
    gates: list[Literal["equivalence", "serving", "outcome"]] | None = None
    before_expiry_s: Annotated[float, Field(gt=0)] | None = None
    on_new_version: bool = False
    priority: Annotated[int, Field(ge=-100, le=100)] = 0


@router.get("/schedules")
def list_schedules(
    services: Using,
    _actor: RouteReader,
    limit: Limit = 100,
    after: After = None,
    route: Name | None = None,
) -> dict[str, Any]:
    """List schedules by name."""
    records = schedules.list_schedules(services.db, after=after, limit=limit, route=route)
    return page([_view(r) for r in records], limit, "name")


@router.get("/schedules/{name}")
def schedule(name: str, services: Using, actor: ScopedReader) -> dict[str, Any]:
    """One schedule with its next slots."""
    schedules.in_scope(services.db, actor, name)
    return _with_upcoming(services, schedules.get_schedule(services.db, name))


@router.put("/schedules/{name}")
def put_schedule(
    name: str, body: ScheduleBody, services: Using, actor: ScopedOperator
) -> dict[str, Any]:
    """Create or replace a schedule. A paused one stays paused."""
    within(actor, body.route)
    fields = body.model_dump()
    gates = fields.pop("gates")
    rule = Rule(**fields, gates=None if gates is None else tuple(gates))
    return _with_upcoming(services, schedules.put_schedule(services.db, actor, name, rule))


@router.delete("/schedules/{name}")
def delete_schedule(name: str, services: Using, actor: ScopedOperator) -> dict[str, Any]:
    """Remove a schedule and its history; runs that it queued stay."""
    schedules.in_scope(services.db, actor, name)
    return _view(schedules.delete_schedule(services.db, actor, name))


@router.post("/schedules/{name}/pause")
def pause(name: str, services: Using, actor: ScopedOperator) -> dict[str, Any]:
    """Let a schedule rest; what falls into the pause is no slot."""
    schedules.in_scope(services.db, actor, name)
    return _view(schedules.pause_schedule(services.db, actor, name))


@router.post("/schedules/{name}/resume")
def resume(name: str, services: Using, actor: ScopedOperator) -> dict[str, Any]:
    """Let a paused schedule go on with its next slot."""
    schedules.in_scope(services.db, actor, name)
    return _with_upcoming(services, schedules.resume_schedule(services.db, actor, name))


@router.get("/schedules/{name}/fires")
def fires(
    name: str, services: Using, actor: ScopedReader, limit: Limit = 100, after: After = None
) -> dict[str, Any]:
    """List what became of a schedule's times, newest first."""
    schedules.in_scope(services.db, actor, name)
    if after is not None and not after.isdecimal():
        raise InputError("is not a cursor", field="after", value=after, remedy="use `next`")
    start = None if after is None else min(int(after), 2**62)
    records = schedules.list_fires(services.db, name, after=start, limit=limit)
    items = [{k: v for k, v in plain_view(r).items() if k != "schedule"} for r in records]
    return page(items, limit, "id")


def _view(record: ScheduleRecord) -> dict[str, Any]:
    view = plain_view(record)
    for inner in ("revision", "since_at", "seen_artifact"):
        del view[inner]
    return view


def _with_upcoming(services: Services, record: ScheduleRecord) -> dict[str, Any]:
    """Each slot in UTC, by its zone's clock, and with its jitter."""
    view = _view(record)
    view["upcoming"] = [
        {
            "at": stamp(slot.at),
            "local": local_time(slot.at, schedules.load_zone(record.zone)),
            "due_at": stamp(slot.due_at),
        }
        for slot in schedules.upcoming(services.db, record, UPCOMING)
        if record.zone is not None
    ]
    return view
