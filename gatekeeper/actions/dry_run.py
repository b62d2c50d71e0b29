"""What a policy would have decided in the past, from what is stored of its routes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.alarms import begun_at
from gatekeeper.core.documents import plain
from gatekeeper.core.dry_run import (
    Change,
    Measured,
    OverrideSpan,
    PastAlarm,
    RouteHistory,
    enabled_share,
    replay,
)
from gatekeeper.core.lease import ENABLE
from gatekeeper.core.policies import Override, Policy, StoredGate
from gatekeeper.core.value import ValueInterval
from gatekeeper.core.verdicts import GATES, from_json
from gatekeeper.errors import InputError, NotFound
from gatekeeper.store import catalog, decisions, results, rounds
from gatekeeper.store.database import now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import DecisionRecord, GateRecord, OverrideRecord

__all__ = ["MAX_DAYS", "try_policy"]

MAX_DAYS = 366
"""Longest past that is looked at."""

_EVERY = 100_000
"""More decisions, overrides and alarms than a route has."""


def try_policy(
    db: Database, document: Mapping[str, Any], *, days: float, routes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return for each route what was decided in the last ``days``, and what would have been.

    Without ``routes`` those of the policy's name. Nothing is stored. ``assumed`` lists results whose
    gate was measured under other settings than the document's: they count as they were measured.

    Raises:
        InputError: the document is no sound policy, or no number of days.
        NotFound: no such route, or none under a policy of this name.
    """
    policy = Policy.from_dict(document)
    if not 0 < days <= MAX_DAYS:
        raise InputError(
            "is out of range", field="days", value=days, remedy=f"use up to {MAX_DAYS} days"
        )
    with db.read() as session:
        names = list(routes) or catalog.route_names(session, policy=policy.name)
        if not names:
            raise NotFound(
                "decides no route yet",
                field="policy",
                value=policy.name,
                remedy="name the routes to try it on: --route",
            )
        until = datetime.fromtimestamp(now(session), UTC)
        start = until - timedelta(days=days)
        tried = [_tried(session, policy, name, start=start, until=until) for name in names]
    return {
        "policy": policy.name,
        "digest": policy.digest,
        "from": start.isoformat(),
        "until": until.isoformat(),
        "routes": tried,
    }


def _tried(
    session: Session, policy: Policy, name: str, *, start: datetime, until: datetime
) -> dict[str, Any]:
    if catalog.route(session, name) is None:
        raise NotFound(
            "is not a route", field="route", value=name, remedy="see gatekeeper route list"
        )
    taken = decisions.decisions(session, route=name, after=None, limit=_EVERY)[::-1]
    history = _history(session, policy, name, taken)
    would = replay(policy, history, until=until)
    was = _was(taken)
    return {
        "route": name,
        "was": _shown(was, start=start, until=until),
        "would": _shown(would, start=start, until=until),
        "assumed": [
            {"run": one.gate.run_id, "gate": one.gate.result.gate}
            for one in history.measured
            if one.assumed
        ],
    }


def _history(
    session: Session, policy: Policy, name: str, taken: Sequence[DecisionRecord]
) -> RouteHistory:
    digests = {record.artifact for record in taken}
    found = {digest: catalog.artifact(session, digest) for digest in digests}
    contracts = {digest: one.contract for digest, one in found.items() if one is not None}
    known = [record for record in taken if record.artifact in contracts]
    gates = [one for one in results.all_gate_results(session) if one.route == name]
    return RouteHistory(
        contracts=contracts,
        artifacts=tuple((_time(r.decided_at), r.artifact) for r in known),
        measured=tuple(_measured(session, policy, one) for one in gates),
        values=tuple((_time(r.decided_at), _value(r.document["value"])) for r in known),
        overrides=tuple(
            _override(one) for one in decisions.overrides_of(session, name, limit=_EVERY)
        ),
        alarms=tuple(
            PastAlarm(one.artifact, one.reason, one.explanation, _time(one.raised_at))
            for one in rounds.alarms(session, route=name, after=None, limit=_EVERY)
        ),
    )


def _measured(session: Session, policy: Policy, record: GateRecord) -> Measured:
    begun = begun_at(session, record.run)
    under = catalog.policy(session, record.policy)
    before = None if under is None else under.document.get(record.gate)
    return Measured(
        artifact=record.artifact,
        gate=StoredGate(
            result=from_json(record.document),
            finished_at=_time(record.finished_at),
            expires_at=_time(record.expires_at),
            run_id=record.run,
        ),
        begun_at=None if begun is None else _time(begun),
        assumed=record.gate in GATES and before != plain(getattr(policy, record.gate)),
    )


def _override(record: OverrideRecord) -> OverrideSpan:
    ends = record.expires_at if record.cleared_at is None else record.cleared_at
    return OverrideSpan(
        _time(record.created_at),
        Override(record.action, record.reason, record.actor, _time(ends), record.gamma),
    )


def _value(document: Mapping[str, Any] | None) -> ValueInterval | None:
    if document is None:
        return None
    return ValueInterval(
        document["per_task"], document["low"], document["high"], document["currency"]
    )


def _was(taken: Sequence[DecisionRecord]) -> list[Change]:
    return [
        Change(
            _time(record.decided_at),
            record.action,
            record.reason,
            record.document["gamma"],
            record.document["explanation"],
        )
        for record in taken
    ]


def _shown(changes: Sequence[Change], *, start: datetime, until: datetime) -> dict[str, Any]:
    """The decisions in force from ``start`` on, and for how much of the time they enabled."""
    before = [change for change in changes if change.at <= start][-1:]
    listed = [*before, *(change for change in changes if change.at > start)]
    return {
        "enabled_share": enabled_share(changes, start=start, until=until),
        "enables": sum(change.action == ENABLE for change in listed),
        "decisions": [
            {
                "at": change.at.isoformat(),
                "action": change.action,
                "reason": change.reason,
                "gamma": change.gamma,
                "explanation": change.explanation,
            }
            for change in listed
        ],
    }


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
