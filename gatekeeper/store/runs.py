"""The run queue: leases and fences decide who may write, never what an executor says."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, func, null, or_, select, tuple_

from gatekeeper.errors import FencedOut
from gatekeeper.store.database import Session, clock
from gatekeeper.store.records import RunRecord
from gatekeeper.store.rows import page
from gatekeeper.store.schema import run as runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement

__all__ = [
    "by_key",
    "cancel",
    "claim",
    "count_by_state",
    "enqueue",
    "fenced_out",
    "finish",
    "get",
    "hold",
    "listing",
    "oldest_pending_s",
    "reap",
    "renew",
    "requeue",
    "set_job",
    "undispatched",
    "update_held",
]


def enqueue(session: Session, record: RunRecord) -> RunRecord:
    """Add a pending run; its creation time is the database's."""
    values = {**asdict(record), "created_at": clock()}
    row = session.execute(runs.insert().values(values).returning(runs)).mappings().one()
    return RunRecord(**row)


def get(session: Session, run_id: str) -> RunRecord | None:
    """Run by id."""
    row = session.execute(select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
    return None if row is None else RunRecord(**row)


def by_key(session: Session, key: str) -> RunRecord | None:
    """Run by idempotency key."""
    query = select(runs).where(runs.c.idempotency_key == key)
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else RunRecord(**row)


def listing(
    session: Session,
    *,
    after: str | None,
    limit: int,
    route: str | None = None,
    state: str | None = None,
) -> list[RunRecord]:
    """Page of runs, newest first (ids begin with their time)."""
    where = [runs.c.route == route] if route is not None else []
    if state is not None:
        where.append(runs.c.state == state)
    rows = page(session, runs, runs.c.id, after=after, limit=limit, where=where, newest_first=True)
    return [RunRecord(**row) for row in rows]


def oldest_pending_s(session: Session) -> float | None:
    """Seconds since the oldest pending run was submitted; None where none is pending."""
    query = select(clock() - func.min(runs.c.created_at)).where(runs.c.state == "pending")
    waited = session.execute(query).scalar_one()
    return None if waited is None else max(float(waited), 0.0)


def count_by_state(session: Session) -> dict[str, int]:
    """Number of runs in each state that occurs."""
    query = select(runs.c.state, func.count()).group_by(runs.c.state)
    return {str(state): int(n) for state, n in session.execute(query)}


def _expired() -> ColumnElement[bool]:
    return and_(runs.c.state == "running", runs.c.lease_until < clock())


def claim(
    session: Session,
    *,
    owner: str,
    engines: Sequence[str],
    devices: Sequence[str],
    lease_s: float,
    run_id: str | None = None,
) -> RunRecord | None:
    """Take the first run that matches: one UPDATE … RETURNING over a picked row.

    Pending runs and runs whose lease ran out are there for the taking. The new fence shuts out
    whoever held the run before.
    """
    ready = or_(
        and_(runs.c.state == "pending", runs.c.cancel_requested.is_(False)),
        and_(
            _expired(),
            runs.c.attempt < runs.c.max_attempts,
            runs.c.cancel_requested.is_(False),
        ),
    )
    offered = tuple_(runs.c.engine, runs.c.device).in_(
        [(engine, device) for engine in engines for device in devices]
    )
    pick = select(runs.c.id).where(ready, offered)
    if run_id is not None:
        pick = pick.where(runs.c.id == run_id)
    picked = (
        pick.order_by(runs.c.priority.desc(), runs.c.created_at, runs.c.id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    statement = (
        runs.update()
        .where(runs.c.id == picked)
        .values(
            state="running",
            attempt=case((runs.c.state == "running", runs.c.attempt + 1), else_=runs.c.attempt),
            fence=runs.c.fence + 1,
            owner=owner,
            lease_s=lease_s,
            lease_until=clock() + lease_s,
            started_at=func.coalesce(runs.c.started_at, clock()),
            progress=null(),
            error=null(),
        )
        .returning(runs)
    )
    row = session.execute(statement).mappings().one_or_none()
    return None if row is None else RunRecord(**row)


def update_held(
    session: Session, run_id: str, fence: int, values: Mapping[str, Any]
) -> RunRecord | None:
    """Change a run if this fence still holds it; None means that it does not."""
    statement = (
        runs.update()
        .where(runs.c.id == run_id, runs.c.fence == fence, runs.c.state == "running")
        .values(**values)
        .returning(runs)
    )
    row = session.execute(statement).mappings().one_or_none()
    return None if row is None else RunRecord(**row)


def hold(
    session: Session, run_id: str, fence: int, values: Mapping[str, Any] | None = None
) -> RunRecord:
    """Lock a held run for this transaction, changing ``values`` on the way.

    Raises:
        FencedOut: the fence is not the current one, or the run is not running.
    """
    held = update_held(session, run_id, fence, values or {"fence": fence})
    if held is None:
        raise fenced_out(fence)
    return held


def fenced_out(fence: int) -> FencedOut:
    """Make the error of a fence that holds nothing."""
    return FencedOut(
        "no longer holds this run: the lease ran out, or the run has ended",
        field="fence",
        value=fence,
        remedy="stop this worker's run; nothing more of it will be stored",
    )


def finish(
    session: Session,
    run_id: str,
    fence: int,
    *,
    state: str,
    error: str | None = None,
    info: Mapping[str, Any] | None = None,
) -> RunRecord:
    """End a held run.

    Raises:
        FencedOut: as ``hold``.
    """
    values: dict[str, Any] = {
        "state": state,
        "finished_at": clock(),
        "lease_until": None,
        "error": error,
    }
    if info is not None:
        values["info"] = info
    return hold(session, run_id, fence, values)


def renew(
    session: Session, run_id: str, fence: int, *, progress: Mapping[str, Any] | None
) -> RunRecord:
    """Extend a held run's lease by its length; None leaves the progress as it is.

    Raises:
        FencedOut: as ``hold``.
    """
    values: dict[str, Any] = {"lease_until": clock() + runs.c.lease_s}
    if progress is not None:
        values["progress"] = progress
    return hold(session, run_id, fence, values)


def requeue(session: Session, run_id: str, fence: int, *, error: str) -> RunRecord:
    """Hand a held run back for its next attempt.

    Raises:
        FencedOut: as ``hold``.
    """
    values = {
        "state": "pending",
        "attempt": runs.c.attempt + 1,
        "lease_until": None,
        "error": error,
    }
    return hold(session, run_id, fence, values)


def cancel(session: Session, run_id: str) -> RunRecord | None:
    """Cancel a pending run now; ask a running one to stop; leave an ended one alone."""
    pending = runs.c.state == "pending"
    statement = (
        runs.update()
        .where(runs.c.id == run_id, runs.c.state.in_(("pending", "running")))
        .values(
            cancel_requested=True,
            state=case((pending, "cancelled"), else_=runs.c.state),
            finished_at=case((pending, clock()), else_=runs.c.finished_at),
        )
        .returning(runs)
    )
    row = session.execute(statement).mappings().one_or_none()
    return None if row is None else RunRecord(**row)


def reap(session: Session) -> list[RunRecord]:
    """Return expired runs to the queue, one attempt on; end those with no attempt left."""
    last = runs.c.attempt >= runs.c.max_attempts
    statement = (
        runs.update()
        .where(_expired())
        .values(
            state=case((runs.c.cancel_requested, "cancelled"), (last, "failed"), else_="pending"),
            attempt=case(
                (or_(runs.c.cancel_requested, last), runs.c.attempt), else_=runs.c.attempt + 1
            ),
            finished_at=case((or_(runs.c.cancel_requested, last), clock())),
            error="the worker stopped renewing its lease",
            lease_until=null(),
        )
        .returning(runs)
    )
    return [RunRecord(**row) for row in session.execute(statement).mappings()]


def undispatched(session: Session) -> list[RunRecord]:
    """Pending runs whose present attempt no executor has been asked to start."""
    query = (
        select(runs)
        .where(
            runs.c.state == "pending",
            or_(
                runs.c.executor_attempt.is_(None),
                runs.c.executor_attempt < runs.c.attempt,
            ),
        )
        .order_by(runs.c.priority.desc(), runs.c.created_at, runs.c.id)
        .with_for_update(skip_locked=True)
    )
    return [RunRecord(**row) for row in session.execute(query).mappings()]


def set_job(session: Session, run_id: str, *, executor: str, job_id: str | None) -> None:
    """Record what an executor was asked to start for the present attempt."""
    session.execute(
        runs.update()
        .where(runs.c.id == run_id)
        .values(executor=executor, executor_job_id=job_id, executor_attempt=runs.c.attempt)
    )
