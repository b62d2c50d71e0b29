"""What a watch sends: counted and judged in one transaction, and the route decided anew on an alarm."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from gatekeeper.actions.alarms import raise_alarms
from gatekeeper.actions.decide import derive
from gatekeeper.actions.watch_reference import reference_of
from gatekeeper.core.watch import (
    MAX_DRIFT,
    UNKNOWN,
    Finding,
    Judgement,
    Reference,
    Sighting,
    WatchState,
    judge,
)
from gatekeeper.core.watch_counts import LiveCounts, design_effect
from gatekeeper.errors import Conflict, NotFound
from gatekeeper.store import catalog, decisions, rounds
from gatekeeper.store.database import now
from gatekeeper.store.rounds import ENGINE, ROUNDS, WatchRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.actions.identity import Actor
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import ArtifactRecord, DecisionRecord, RouteRecord

__all__ = [
    "KEPT_S",
    "MAX_WATCHES",
    "Look",
    "Seen",
    "WatchView",
    "list_watches",
    "record_look",
    "record_rounds",
]

MAX_WATCHES = 200
"""Most watches of one route: whoever sends under ever new names must not fill the database."""

KEPT_S = 86_400.0
"""Seconds for which a repeated post of rounds is recognised, and after which silent watches may go."""

_DROPPED_AT_ONCE = 1000
_OVERDUE = 3.0


@dataclass(frozen=True)
class Look:
    """One look at an engine as it was sent. ``drafted`` alone is None where the engine does not count.

    ``max_drift`` is how far acceptance may lie outside what was measured; see ``core.watch`` for the
    rest.
    """

    rounds: int | None
    drafted: int | None
    accepted: int | None
    memory_utilisation: float | None
    waiting: int | None
    readings: Mapping[str, str]
    restarted: bool
    problems: tuple[str, ...]
    interval_s: float
    max_drift: float = MAX_DRIFT


@dataclass(frozen=True)
class Seen:
    """What a look led to: the watch as it is now, and the route's decision."""

    watch: WatchRecord
    decision: DecisionRecord


@dataclass(frozen=True)
class WatchView:
    """A watch; ``overdue`` is None where nobody promised a next look."""

    record: WatchRecord
    overdue: bool | None


@dataclass(frozen=True)
class _Case:
    """A route held to the end of the transaction, with what decides on it."""

    route: RouteRecord
    artifact: ArtifactRecord
    decision: DecisionRecord


def record_look(
    db: Database, actor: Actor, *, route: str, source: str, look: Look, key: str | None
) -> Seen:
    """Judge a look at an engine. A key that is the last one of this source changes nothing.

    Raises:
        NotFound: no such route.
        Conflict: the route has too many watches.
        InputError: counts that cannot be.
    """
    with db.write() as session:
        case = _hold(session, route)
        post = _Post(session, case, case.artifact.digest, source, ENGINE, key, look.interval_s)
        before = post.before()
        if before is not None and key is not None and before.last_key == key:
            return Seen(before, case.decision)
        reference = replace(
            reference_of(session, case.route, case.artifact, case.decision),
            max_drift=look.max_drift,
        )
        sighting = _sighting(look, case.artifact.document.get("gamma"))
        return post.judge(actor, before, sighting, reference)


def record_rounds(
    db: Database,
    actor: Actor,
    *,
    route: str,
    artifact: str | None,
    source: str,
    counts: LiveCounts,
    key: str | None,
) -> Seen:
    """Count rounds of live traffic, and judge them where the route serves that artifact.

    ``artifact`` None is the one the route serves now. A key that was used before changes nothing.

    Raises:
        NotFound: no such route or artifact.
        Conflict: the key was used for other rounds, or the route has too many watches.
    """
    with db.write() as session:
        case = _hold(session, route)
        digest = case.artifact.digest if artifact is None else artifact
        if catalog.artifact(session, digest) is None:
            raise NotFound(
                "is not registered",
                field="artifact",
                value=digest,
                remedy="see gatekeeper artifact list",
            )
        post = _Post(session, case, digest, source, ROUNDS, key, None)
        before = post.before()
        stored = None if key is None else rounds.rounds_by_key(session, key)
        if stored is not None:
            same = (stored.route, stored.artifact, stored.source) == (route, digest, source)
            if not same or dict(stored.counts) != counts.to_dict() or before is None:
                raise Conflict(
                    "was used for other rounds",
                    field="Idempotency-Key",
                    value=key,
                    remedy="use a new key for new rounds",
                )
            return Seen(before, case.decision)
        rounds.drop_old_rounds(session, age_s=KEPT_S, at_most=_DROPPED_AT_ONCE)
        rounds.add_rounds(
            session,
            key=key or secrets.token_hex(16),
            route=route,
            artifact=digest,
            source=source,
            counts=counts.to_dict(),
        )
        if digest != case.artifact.digest:
            return post.count(before, counts)
        reference = reference_of(session, case.route, case.artifact, case.decision)
        if counts.clusters is not None:
            live = design_effect(counts.accepted, counts.drafted, counts.clusters)
            effect = max(reference.design_effect, live or 0.0)
            reference = replace(reference, design_effect=effect)
        return post.judge(actor, before, Sighting(counts=counts), reference)


def list_watches(
    db: Database, *, route: str | None, after: int | None, limit: int
) -> list[WatchView]:
    """Page of watches, newest first."""
    with db.read() as session:
        at = now(session)
        found = rounds.watches(session, route=route, after=after, limit=limit)
    return [
        WatchView(
            record,
            None
            if record.interval_s is None
            else at - record.last_at > _OVERDUE * record.interval_s,
        )
        for record in found
    ]


def _hold(session: Session, name: str) -> _Case:
    route = catalog.route(session, name, lock=True)
    if route is None:
        raise NotFound(
            "is not a route", field="route", value=name, remedy="see gatekeeper route list"
        )
    decision = decisions.latest_decision(session, name)
    if decision is None:
        derive(session, [name])
        decision = decisions.latest_decision(session, name)
    artifact = catalog.resolve(session, route.artifact)
    if artifact is None or decision is None:
        # Foreign keys and route validation exclude it; a hand-edited database has no answer.
        raise NotFound(
            "points at an artifact that is not there",
            field="route",
            value=name,
            remedy="set the route again",
        )
    return _Case(route, artifact, decision)


@dataclass(frozen=True)
class _Post:
    """What one source sends of one artifact, inside the transaction that stores it."""

    session: Session
    case: _Case
    artifact: str
    source: str
    kind: str
    key: str | None
    interval_s: float | None

    def before(self) -> WatchRecord | None:
        """The watch so far.

        Raises:
            Conflict: it would be a new one, and the route has too many.
        """
        session, name = self.session, self.case.route.name
        found = rounds.watch(
            session, route=name, artifact=self.artifact, source=self.source, kind=self.kind
        )
        if found is None and rounds.count_watches(session, name) >= MAX_WATCHES:
            rounds.drop_silent(session, name, silent_s=KEPT_S)
            if rounds.count_watches(session, name) >= MAX_WATCHES:
                raise Conflict(
                    f"has {MAX_WATCHES} watches already",
                    field="route",
                    value=name,
                    remedy="send under one name for each engine or gateway, the same every time",
                )
        return found

    def judge(
        self, actor: Actor, before: WatchRecord | None, sighting: Sighting, reference: Reference
    ) -> Seen:
        """Judge, remember, and decide the route anew where an alarm was raised."""
        name = self.case.route.name
        state = WatchState() if before is None else WatchState.from_dict(before.state)
        state, judgement = judge(state, sighting, reference)
        raised = raise_alarms(
            self.session,
            [(f.reason, f"{f.name} {f.says}.") for f in judgement.raised if f.reason],
            route=name,
            artifact=self.artifact,
            source=self.source,
            actor=actor,
        )
        watch = self._put(before, judgement, state)
        if raised:
            derive(self.session, [name])
        return Seen(watch, decisions.latest_decision(self.session, name) or self.case.decision)

    def count(self, before: WatchRecord | None, counts: LiveCounts) -> Seen:
        """Add counts of an artifact that the route does not serve now."""
        state = WatchState() if before is None else WatchState.from_dict(before.state)
        serves = self.case.artifact.digest[:12]
        says = f"the route serves {serves}: these rounds are counted, not judged"
        judgement = Judgement((Finding("acceptance", UNKNOWN, says),))
        state = replace(state, counts=state.counts + counts)
        return Seen(self._put(before, judgement, state), self.case.decision)

    def _put(
        self, before: WatchRecord | None, judgement: Judgement, state: WatchState
    ) -> WatchRecord:
        return rounds.put_watch(
            self.session,
            before,
            route=self.case.route.name,
            artifact=self.artifact,
            source=self.source,
            kind=self.kind,
            interval_s=self.interval_s,
            outcome=judgement.outcome,
            findings=[asdict(finding) for finding in judgement.findings],
            state=state.to_dict(),
            key=self.key,
        )


def _sighting(look: Look, gamma: object) -> Sighting:
    counts, problems = None, look.problems
    drafted = look.drafted
    if drafted is None and look.rounds is not None and isinstance(gamma, int):
        # the engine counts no drafted tokens: each round proposes the artifact's window
        drafted = look.rounds * gamma
    if look.rounds is not None and drafted is not None and look.accepted is not None:
        if look.accepted <= drafted:
            counts = LiveCounts(look.rounds, drafted, look.accepted)
        else:
            problems += (f"{look.accepted} tokens accepted of {drafted} drafted cannot be",)
    return Sighting(
        counts, look.memory_utilisation, look.waiting, look.readings, look.restarted, problems
    )
