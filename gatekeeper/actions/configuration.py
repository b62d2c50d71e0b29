"""Configuration as code: documents against what is stored, all of them applied or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.actions import on_demand
from gatekeeper.actions.catalog import (
    check_alias,
    new_policy,
    new_route,
    set_alias,
    set_policy,
    set_route,
)
from gatekeeper.actions.decide import derive
from gatekeeper.actions.economics import new_economics, set_economics
from gatekeeper.actions.identity import require
from gatekeeper.actions.schedules import drop_schedule, set_schedule
from gatekeeper.core.configuration import (
    ADD,
    ALIAS,
    CHANGE,
    ECONOMICS,
    KEEP,
    KINDS,
    POLICY,
    REMOVE,
    ROUTE,
    SCHEDULE,
    Change,
    Declared,
    declared,
    digest,
    document_of,
    field_changes,
    located,
)
from gatekeeper.core.documents import plain, read
from gatekeeper.core.economics import Economics
from gatekeeper.core.policies import Policy
from gatekeeper.core.schedules import Rule
from gatekeeper.errors import Conflict, InputError
from gatekeeper.store import access, catalog, economics, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gatekeeper.actions.identity import Actor
    from gatekeeper.store.database import Database, Session

    State = Mapping[tuple[str, str], Mapping[str, Any]]

__all__ = ["Plan", "apply_configuration", "export_configuration"]

_ADMINS = {POLICY, ECONOMICS}


@dataclass(frozen=True)
class Plan:
    """What documents change, and the digest of that."""

    changes: tuple[Change, ...]
    applied: bool
    not_pruned: tuple[str, ...] = ()
    """Kinds that pruning left alone, things and all, since no document has one of them."""

    @property
    def digest(self) -> str:
        """Names these changes; see ``apply_configuration``."""
        return digest(self.changes)


def export_configuration(db: Database) -> list[dict[str, Any]]:
    """Return everything that documents declare, as documents, by kind and name."""
    with db.read() as session:
        state = _state(session)
    return [document_of(kind, name, state[kind, name]) for kind, name in _ordered(state)]


def _ordered(keys: State | set[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(keys, key=lambda key: (KINDS.index(key[0]), key[1]))


def apply_configuration(
    db: Database,
    folder: Path,
    actor: Actor,
    documents: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    prune: bool = False,
    dry_run: bool = False,
    plan: str | None = None,
) -> Plan:
    """Bring the database to what (file, document) pairs declare, in one transaction.

    What no document declares stays, or with ``prune`` goes where nothing needs it, of the kinds that
    the documents have. With ``dry_run`` all is tried and nothing stored. ``plan`` is the digest of the
    changes that somebody has looked at: other changes are refused.

    Raises:
        InputError, NotFound, Incompatible: a document is wrong; its file stands before the field.
        Forbidden: policies or economics change, and the actor is no admin.
        Conflict: the database has changed since the plan.
    """
    wanted = [declared(document, file=file) for file, document in documents]
    _refuse_twice(wanted)
    writing = _Writing(db, folder, actor)
    if not dry_run:
        writing.prepare(wanted)
    try:
        with db.write() as session:
            if not dry_run:
                _hold(session, wanted)
            state = _state(session)
            changes = tuple(_changes(state, wanted, prune=prune))
            left = _not_pruned(state, wanted) if prune else ()
            found = Plan(changes, applied=not dry_run, not_pruned=left)
            if plan is not None and plan != found.digest:
                raise Conflict(
                    "is not what would change now: the database has changed meanwhile",
                    field="plan",
                    value=plan,
                    remedy="look at the changes again",
                )
            writing.write(session, wanted, changes)
            if dry_run:
                raise _Undone  # noqa: TRY301 - rolls the transaction back
            writing.finish(session, changes, found.digest)
    except _Undone:
        return found
    writing.clean_up()
    return found


class _Undone(Exception):
    """Ends the transaction of a dry run."""


def _refuse_twice(wanted: Sequence[Declared]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for one in wanted:
        before = seen.setdefault((one.kind, one.name), one.file)
        if before is not one.file:
            raise InputError(
                f"is declared in {before} too",
                field=f"{one.file}: name",
                value=one.name,
                remedy=f"keep one {one.kind} of this name",
            )


def _state(session: Session) -> dict[tuple[str, str], Mapping[str, Any]]:
    """What is stored, in the form of the documents."""
    state: dict[tuple[str, str], Mapping[str, Any]] = {}
    for policy in catalog.policies(session):
        state[POLICY, policy.name] = plain(Policy.from_dict(policy.document).to_dict())
    for prices in economics.all_current(session):
        state[ECONOMICS, prices.name] = plain(Economics.from_dict(prices.document).to_dict())
    for alias, target in catalog.aliases(session).items():
        state[ALIAS, alias] = {"digest": target}
    for route in catalog.all_routes(session):
        spec = plain(route)
        state[ROUTE, route.name] = {k: spec[k] for k in spec if k not in ("name", "updated_at")}
    for schedule in schedules.every(session):
        spec = plain(schedule)
        state[SCHEDULE, schedule.name] = {name: spec[name] for name in Rule.__dataclass_fields__}
    return state


def _hold(session: Session, wanted: Sequence[Declared]) -> None:
    """Lock every route that is declared or refers to what is, in one order, as ``derive`` does."""
    for name in sorted(_concerned(session, [(one.kind, one.name) for one in wanted])):
        catalog.route(session, name, lock=True)


def _concerned(session: Session, things: Sequence[tuple[str, str]]) -> set[str]:
    """Routes that these things are, or are referred to by."""
    found: set[str] = set()
    for kind, name in things:
        if kind == ROUTE:
            found.add(name)
        elif kind == POLICY:
            found.update(catalog.route_names(session, policy=name))
        elif kind == ALIAS:
            found.update(catalog.route_names(session, artifact=name))
        elif kind == ECONOMICS:
            found.update(catalog.route_names(session, economics=name))
    return found


def _changes(state: State, wanted: Sequence[Declared], *, prune: bool) -> list[Change]:
    """What differs, in the order of the kinds; what goes, last."""
    changes = []
    for one in sorted(wanted, key=lambda one: (KINDS.index(one.kind), one.name)):
        before = state.get((one.kind, one.name))
        fields = field_changes(before, {**_kept(before), **one.spec})
        if before is None or fields:
            done = ADD if before is None else CHANGE
            changes.append(Change(one.kind, one.name, done, one.file, fields))
    if prune:
        changes += _pruned(state, wanted)
    return changes


def _kept(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a document need not repeat to keep it."""
    return {} if before is None or "rollout" not in before else {"rollout": before["rollout"]}


def _pruned(state: State, wanted: Sequence[Declared]) -> list[Change]:
    """What no document declares, of the kinds that they have: from what refers to what is referred to.

    A route stays, since its evidence and decisions refer to it, and with it what it needs.
    """
    after = {**state, **{(one.kind, one.name): one.spec for one in wanted}}
    routes = {name: spec for (kind, name), spec in after.items() if kind == ROUTE}
    kinds = {one.kind for one in wanted}
    left = {key for key in state if key[0] in kinds} - {(one.kind, one.name) for one in wanted}
    changes = []
    for kind, name in reversed(_ordered(left)):
        why = _needed(kind, name, routes)
        if why is None:
            fields = field_changes(state[kind, name], None)
            changes.append(Change(kind, name, REMOVE, fields=fields))
        else:
            changes.append(Change(kind, name, KEEP, why=why))
    return changes


def _not_pruned(state: State, wanted: Sequence[Declared]) -> tuple[str, ...]:
    """Kinds of which there are things and no document; routes always stay and are none of them."""
    left = {kind for kind, _ in state} - {one.kind for one in wanted} - {ROUTE}
    return tuple(kind for kind in KINDS if kind in left)


def _needed(kind: str, name: str, routes: Mapping[str, Mapping[str, Any]]) -> str | None:
    if kind == ROUTE:
        return "its evidence and decisions refer to it"
    uses: dict[str, Callable[[Mapping[str, Any]], object]] = {
        POLICY: lambda route: route["policy"],
        ECONOMICS: lambda route: route["economics"] or route["policy"],
        ALIAS: lambda route: route["artifact"],
    }
    use = uses.get(kind)
    if use is None:
        return None
    users = sorted(route for route, spec in routes.items() if use(spec) == name)
    return f"route {users[0]} needs it" if users else None


@dataclass
class _Writing:
    """One application: what it needs beside the transaction, and what it writes in it."""

    db: Database
    folder: Path
    actor: Actor
    fresh: list[Any] = field(default_factory=list)
    replaced: list[Any] = field(default_factory=list)

    def prepare(self, wanted: Sequence[Declared]) -> None:
        """Price routes by economics that change, so that their decisions need not wait for it."""
        for one in wanted:
            if one.kind != ECONOMICS:
                continue
            with self.db.read() as session:
                known = economics.current(session, one.name)
                routes = catalog.route_names(session, economics=one.name)
            record = new_economics(self.actor, one.name, one.spec)
            if known is not None and known.digest == record.digest:
                continue
            for route in routes:
                self.fresh.append(
                    on_demand.price.prepare_pricing(self.db, self.folder, route, prices=record)
                )

    def write(
        self, session: Session, wanted: Sequence[Declared], changes: Sequence[Change]
    ) -> None:
        """Store and remove; decide nothing yet."""
        declared_as = {(one.kind, one.name): one for one in wanted}
        for change in changes:
            if change.change in (ADD, CHANGE):
                if change.kind in _ADMINS:
                    require(self.actor, "admin")
                with located(change.file):
                    self._set(session, declared_as[change.kind, change.name])
        for change in changes:
            if change.change == REMOVE:
                if change.kind in _ADMINS:
                    require(self.actor, "admin")
                self._remove(session, change)
        for change in changes:
            if change.kind == ALIAS and change.change != REMOVE:
                with located(change.file):
                    check_alias(session, change.name)  # once every route is what it will be

    def _set(self, session: Session, one: Declared) -> None:
        if one.kind == POLICY:
            set_policy(session, self.actor, new_policy(self.actor, one.name, one.spec))
        elif one.kind == ECONOMICS:
            set_economics(session, self.actor, new_economics(self.actor, one.name, one.spec))
        elif one.kind == ALIAS:
            set_alias(session, self.actor, one.name, one.spec["digest"])
        elif one.kind == ROUTE:
            spec = dict(one.spec)
            route = new_route(one.name, slice_name=spec.pop("slice"), **spec)
            set_route(session, self.actor, route)
        else:
            set_schedule(session, self.actor, one.name, read(Rule, dict(one.spec), field=""))

    def _remove(self, session: Session, change: Change) -> None:
        if change.kind == SCHEDULE:
            drop_schedule(session, self.actor, change.name)
            return
        if change.kind == POLICY:
            catalog.drop_policy(session, change.name)
        elif change.kind == ECONOMICS:
            economics.drop(session, change.name)
        else:
            catalog.drop_alias(session, change.name)
        detail = {"fields": [one.to_dict() for one in change.fields]}
        access.audit(
            session,
            actor=self.actor,
            action=f"{change.kind}.remove",
            target=change.name,
            detail=detail,
        )

    def finish(self, session: Session, changes: Sequence[Change], plan: str) -> None:
        """Store what was priced and decide every route concerned, once."""
        done = [one for one in changes if one.change != KEEP]
        if not done:
            return
        self.replaced = [
            on_demand.price.store_pricing(session, one) for one in self.fresh if one is not None
        ]
        counts = {what: sum(one.change == what for one in done) for what in (ADD, CHANGE, REMOVE)}
        access.audit(
            session,
            actor=self.actor,
            action="configuration.apply",
            target="configuration",
            detail={**counts, "plan": plan},
        )
        derive(session, _concerned(session, [(one.kind, one.name) for one in done]))

    def clean_up(self) -> None:
        """Remove the files of pricings that were replaced."""
        if self.replaced:
            on_demand.price.drop_replaced(self.db, self.folder, self.replaced)
