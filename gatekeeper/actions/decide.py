"""From stored results to a route's decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.alarms import bar
from gatekeeper.actions.ramp import ramped
from gatekeeper.actions.webhooks import tell
from gatekeeper.core.bypass import BYPASS, Lease
from gatekeeper.core.granting import Hold, grant, ready_at, settle
from gatekeeper.core.policies import Override, Policy, StoredGate, decide
from gatekeeper.core.running_pair import SERVER_GATES, is_running_pair
from gatekeeper.core.value import ValueInterval
from gatekeeper.core.verdicts import GATES, from_json
from gatekeeper.errors import NotFound
from gatekeeper.store import catalog, decisions, economics, pricing, results
from gatekeeper.store.database import Database, Session, now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.store.pricing import PricingRecord
    from gatekeeper.store.records import (
        DecisionRecord,
        GateRecord,
        OverrideRecord,
        RouteRecord,
    )

__all__ = [
    "contradictions",
    "current",
    "derive",
    "history",
    "instant",
    "present_pricing",
    "pricing_basis",
    "refresh",
    "stamp",
]

_NOT_COMPARED = ("version", "decided_at", "ttl_s", "max_stale_s")
"""Fields of a lease that differ between two identical decisions taken at different times."""


def instant(seconds: float | None) -> datetime | None:
    """Point in time of a column; None stays None."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def stamp(seconds: float | None) -> str | None:
    """RFC 3339 time of a column."""
    time = instant(seconds)
    return None if time is None else time.isoformat()


def derive(session: Session, routes: Iterable[str], *, anew: bool = False) -> list[DecisionRecord]:
    """Decide routes anew, in the caller's transaction, and store what has changed, or with ``anew`` all.

    Every route is locked before the counter is, in one order, so that transactions which decide
    several routes cannot block each other.
    """
    found = [catalog.route(session, name, lock=True) for name in sorted(set(routes))]
    changed = []
    for route in found:
        if route is not None:
            record = _derive_one(session, route, anew=anew)
            if record is not None:
                changed.append(record)
    return changed


@dataclass(frozen=True)
class _Fresh:
    """What a route's decision is now, before it has a version."""

    artifact: str
    policy: str
    document: Mapping[str, Any]
    state: Mapping[str, Any]
    evidence_expires_at: datetime | None
    at: float

    def agrees_with(self, record: DecisionRecord | None) -> bool:
        """Whether the stored decision says the same."""
        if record is None or record.state != self.state:
            return False
        if (record.artifact, record.policy) != (self.artifact, self.policy):
            return False
        return _compared(record.document) == _compared(self.document)


def _derive_one(session: Session, route: RouteRecord, *, anew: bool) -> DecisionRecord | None:
    before = decisions.latest_decision(session, route.name)
    fresh = _judge(session, route, before)
    if not anew and fresh.agrees_with(before):
        return None
    version = decisions.advance(session)
    expires = fresh.evidence_expires_at
    record = decisions.add_decision(
        session,
        route=route.name,
        at=version,
        artifact=fresh.artifact,
        policy=fresh.policy,
        document={**fresh.document, "version": [version.epoch, version.counter]},
        state=fresh.state,
        decided_at=fresh.at,
        evidence_expires_at=None if expires is None else expires.timestamp(),
    )
    tell(session, record, before)
    return record


def _judge(session: Session, route: RouteRecord, before: DecisionRecord | None) -> _Fresh:
    artifact = catalog.resolve(session, route.artifact)
    stored_policy = catalog.current_policy(session, route.policy)
    if artifact is None or stored_policy is None:
        # Foreign keys and route validation exclude it; a hand-edited database fails closed.
        raise NotFound(
            "points at an artifact or policy that is not there",
            field="route",
            value=route.name,
            remedy="set the route again",
        )
    policy = Policy.from_dict(stored_policy.document)
    at = now(session)
    moment = datetime.fromtimestamp(at, UTC)
    governing = results.governing_results(
        session, route=route.name, artifact=artifact.digest, policy=stored_policy.digest
    )
    priced = present_pricing(session, route, artifact.digest, stored_policy.digest, governing)
    value, unpriced = _value(priced)
    override = decisions.active_override(session, route.name, at=at)
    wanted = decide(
        policy,
        artifact.contract,
        {gate: _stored(record) for gate, record in governing.items()},
        value,
        moment,
        unpriced=unpriced,
        refused=[gate for gate in GATES if gate not in SERVER_GATES]
        if is_running_pair(artifact.document)
        else (),
        override=_override(override),
    )
    wanted = bar(session, wanted, route=route.name, artifact=artifact.digest, override=override)
    remembered = before.state if before else {}
    verdict, hold = settle(policy, wanted, _recall(remembered), moment)
    rollout, ramp = ramped(
        session, route, verdict, remembered, artifact=artifact.digest, now=moment
    )
    lease = grant(
        policy,
        verdict,
        route=route.name,
        artifact=artifact.digest,
        version=(0, 0),
        now=moment,
        rollout=rollout,
    )
    turning = _next_change(governing.values(), override, at)
    if wanted.action != verdict.action:
        ready = ready_at(policy, hold)
        turning = _earliest(turning, 0.0 if ready is None else ready.timestamp(), at)
    return _Fresh(
        artifact=artifact.digest,
        policy=stored_policy.digest,
        document=lease.to_dict(),
        state={"reconsider_at": turning, "hold": _remember(hold), **ramp},
        evidence_expires_at=verdict.evidence_expires_at,
        at=at,
    )


def pricing_basis(
    *,
    artifact: str,
    policy: str,
    economics_name: str,
    economics: str | None,
    governing: Mapping[str, GateRecord],
) -> tuple[str | None, ...]:
    """What a decision needs a pricing to rest on, in the order of ``PricingRecord.basis``."""
    runs = {gate: record.run for gate, record in governing.items()}
    return (artifact, policy, economics_name, economics, runs.get("serving"), runs.get("outcome"))


def present_pricing(
    session: Session,
    route: RouteRecord,
    artifact: str,
    policy: str,
    governing: Mapping[str, GateRecord],
) -> PricingRecord | None:
    """Return the stored pricing if it rests on what a decision now rests on."""
    name = route.economics or route.policy
    prices = economics.current(session, name)
    wanted = pricing_basis(
        artifact=artifact,
        policy=policy,
        economics_name=name,
        economics=None if prices is None else prices.digest,
        governing=governing,
    )
    record = pricing.latest(session, route.name)
    return None if record is None or record.basis != wanted else record


def _value(record: PricingRecord | None) -> tuple[ValueInterval | None, tuple[str, ...]]:
    """Value per task of a pricing, and what it still needs."""
    if record is None:
        return None, ("a pricing of the present evidence, which follows within seconds",)
    total = record.document["total"]
    if total is None:
        return None, tuple(record.document["still_needed"])
    return (
        ValueInterval(total["per_task"], total["low"], total["high"], total["currency"]),
        tuple(record.document["still_needed"]),
    )


def contradictions(db: Database) -> list[tuple[str, object, object]]:
    """Fields of the latest decisions that stored results do not bear out.

    Each is (route/field, as recorded, as derived now). Decisions due to be reconsidered are left
    out: time has changed them, not a hand.
    """
    found: list[tuple[str, object, object]] = []
    with db.read() as session:
        for record in decisions.latest_decisions(session):
            route = catalog.route(session, record.route)
            if route is None or _due(record, now(session)):
                continue
            fresh = _compared(_judge(session, route, record).document)
            stored = _compared(record.document)
            found += [
                (f"{route.name}/{key}", stored.get(key), fresh.get(key))
                for key in sorted({*stored, *fresh})
                if stored.get(key) != fresh.get(key)
            ]
    return found


def _compared(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in _NOT_COMPARED}


def _stored(record: GateRecord) -> StoredGate:
    return StoredGate(
        result=from_json(record.document),
        finished_at=datetime.fromtimestamp(record.finished_at, UTC),
        expires_at=datetime.fromtimestamp(record.expires_at, UTC),
        run_id=record.run,
    )


def _override(record: OverrideRecord | None) -> Override | None:
    if record is None:
        return None
    return Override(
        action=record.action,
        reason=record.reason,
        actor=record.actor,
        expires_at=datetime.fromtimestamp(record.expires_at, UTC),
        gamma=record.gamma,
    )


def _recall(state: Mapping[str, Any]) -> Hold:
    raw = state.get("hold") or {}
    return Hold(
        action=raw.get("action", BYPASS),
        enable_since=instant(raw.get("enable_since")),
        fell_back_at=instant(raw.get("fell_back_at")),
    )


def _remember(hold: Hold) -> dict[str, Any]:
    def seconds(time: datetime | None) -> float | None:
        return None if time is None else time.timestamp()

    return {
        "action": hold.action,
        "enable_since": seconds(hold.enable_since),
        "fell_back_at": seconds(hold.fell_back_at),
    }


def _next_change(
    governing: Iterable[GateRecord], override: OverrideRecord | None, at: float
) -> float | None:
    """Earliest time at which this decision changes by itself."""
    times = [record.expires_at for record in governing]
    if override is not None:
        times.append(override.expires_at)
    return min((t for t in times if t > at), default=None)


def _earliest(one: float | None, other: float, at: float) -> float:
    later = max(other, at)
    return later if one is None else min(one, later)


def _due(record: DecisionRecord, at: float) -> bool:
    turning = record.state.get("reconsider_at")
    return turning is not None and turning <= at


def refresh(db: Database, *, everything: bool = False) -> list[DecisionRecord]:
    """Decide anew what the passing of time has changed; ``everything`` at a start."""
    with db.read() as session:
        at = now(session)
        latest = {record.route: record for record in decisions.latest_decisions(session)}
        names = [
            name
            for name in catalog.route_names(session)
            if everything or name not in latest or _due(latest[name], at)
        ]
    if not names:
        return []
    with db.write() as session:
        return derive(session, names)


def _current(db: Database, route: str) -> tuple[DecisionRecord, float]:
    with db.read() as session:
        record, at = decisions.latest_decision(session, route), now(session)
    if record is not None and not _due(record, at):
        return record, at
    with db.write() as session:
        derive(session, [route])
        record, at = decisions.latest_decision(session, route), now(session)
    if record is None:
        raise NotFound(
            "is not a route", field="route", value=route, remedy="see gatekeeper route list"
        )
    return record, at


def _leased(record: DecisionRecord, at: float) -> Lease:
    """Return the stored lease, cut so that it lapses no later than the decision may change."""
    turning = record.state.get("reconsider_at")
    left = float("inf") if turning is None else max(turning - at, 0.0)
    document = dict(record.document)
    document["ttl_s"] = min(document["ttl_s"], left)
    document["max_stale_s"] = min(document["max_stale_s"], left)
    return Lease.from_dict(document)


def current(db: Database, route: str) -> tuple[DecisionRecord, Lease]:
    """Return the route's decision now as it is stored and as it is leased.

    Raises:
        NotFound: no such route.
    """
    record, at = _current(db, route)
    return record, _leased(record, at)


def history(
    db: Database, *, route: str | None, after: int | None, limit: int
) -> list[DecisionRecord]:
    """Page of past decisions, newest first."""
    with db.read() as session:
        return decisions.decisions(session, route=route, after=after, limit=limit)
