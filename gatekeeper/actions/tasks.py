"""From stored spans to computed tasks: outside the ingest request, a bounded amount at a time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.actions.task_figures import (
    compute,
    conversation_id,
    figures,
    is_conversation,
    routes_of,
)
from gatekeeper.actions.task_spans import read_spans
from gatekeeper.core.critical_path import factor
from gatekeeper.core.routing import Rule
from gatekeeper.core.task_assignment import RoutedRules, Routing, TaskRules, conversation_of
from gatekeeper.errors import InputError, NotFound
from gatekeeper.store import catalog, retention, tasks
from gatekeeper.store.database import Database, Session, now

if TYPE_CHECKING:
    from gatekeeper.core.task_assignment import AssignedCall
    from gatekeeper.core.task_profile import TaskProfile

__all__ = [
    "MAX_SPANS",
    "PathView",
    "get_task",
    "list_tasks",
    "path_of",
    "routing_of",
    "settle_due",
    "unmatched_calls",
]

MAX_SPANS = 10_000
"""Largest task that is computed; a larger one is stored and shown, never priced."""

BATCH = 50
BUDGET_S = 0.5
"""What one tick does at most: so many tasks, and no further one after so many seconds."""

# A large task takes 50 MB and more while it is computed, and the interpreter computes no two at once:
# whoever asks for one takes turns with the others, and then mostly finds it computed.
_turn = threading.RLock()


@dataclass(frozen=True)
class PathView:
    """A task's profile at the speed-up asked for, with the calls and their routes."""

    record: tasks.TaskRecord
    profile: TaskProfile
    calls: tuple[AssignedCall, ...]


def routing_of(session: Session) -> Routing:
    """Every route's rules, in the order in which they are tried."""
    return Routing(
        tuple(
            RoutedRules(
                route.name,
                tuple(Rule.from_dict(rule) for rule in route.rules),
                TaskRules() if route.task_rules is None else TaskRules.from_dict(route.task_rules),
            )
            for route in catalog.all_routes(session)
        )
    )


def settle_due(db: Database, *, limit: int = BATCH, budget_s: float = BUDGET_S) -> int:
    """Compute the tasks that are due, oldest first; return how many were."""
    with db.read() as session:
        routing = routing_of(session)
        names = tasks.due(session, routing=routing.digest, limit=limit)
    began = time.monotonic()
    done = 0
    for name in names:
        done += _settle(db, name, routing)
        if time.monotonic() - began > budget_s:
            break
    return done


def _settle(db: Database, task_id: str, routing: Routing, *, anyway: bool = False) -> bool:
    """Compute one task and store it if nothing has changed meanwhile.

    A task that has not been quiet for long enough is left open: ``anyway`` computes it all the
    same, for somebody who asks.
    """
    with _turn:
        return _settle_in_turn(db, task_id, routing, anyway=anyway)


def _settle_in_turn(db: Database, task_id: str, routing: Routing, *, anyway: bool) -> bool:
    with db.read() as session:
        seen = tasks.unsettled(session, task_id)
        if seen is None or _done(seen, routing, anyway=anyway):
            return False
        found = read_spans(session, task_id, routing, limit=MAX_SPANS + 1)
        at = now(session)
    if not found:  # a conversation whose traces now belong elsewhere
        with db.write() as session:
            return tasks.file_under(session, seen, None, routing=routing.digest)
    too_large = len(found) > MAX_SPANS
    found = found[:MAX_SPANS]
    rules = routing.task_rules(routes_of(seen, found, routing))
    due_at = seen.touched_at + max(rule.quiet_s for rule in rules)
    quiet = due_at <= at
    if not quiet and not anyway:
        with db.write() as session:
            tasks.postpone(session, seen, due_at=due_at)
        return False
    conversation = None if is_conversation(task_id) else conversation_of(found, rules)
    if conversation is not None and not _final(db, conversation_id(conversation)):
        return _file(db, seen, conversation_id(conversation), routing, quiet_s=due_at - at)
    if quiet and _known(seen, routing):
        with db.write() as session:
            return tasks.close(session, seen)
    large = f"more than {MAX_SPANS} spans: not computed"
    result = (None, large) if too_large else compute(seen, found, routing)
    made = figures(seen, found, *result, rules)
    with db.write() as session:
        state = tasks.COMPLETE if quiet else tasks.OPEN
        version = tasks.settle(session, seen, made, routing=routing.digest, state=state)
        if version is not None and seen.part_of is not None:
            _changed(session, seen.part_of, quiet_s=0.0)
    return version is not None


def _done(seen: tasks.Unsettled, routing: Routing, *, anyway: bool) -> bool:
    """Whether somebody else was faster, or nothing is left to compute the task from."""
    complete = anyway or seen.state == tasks.COMPLETE
    return seen.spans_removed_at is not None or (complete and _known(seen, routing))


def _final(db: Database, task_id: str) -> bool:
    """Whether a task's spans were removed: a trace that comes later is a task of its own."""
    with db.read() as session:
        return bool(retention.without_spans(session, [task_id]))


def _known(seen: tasks.Unsettled, routing: Routing) -> bool:
    """Whether the stored figures know all spans and all rules."""
    return seen.computed == seen.generation and seen.routing == routing.digest


def _file(
    db: Database, seen: tasks.Unsettled, conversation: str, routing: Routing, *, quiet_s: float
) -> bool:
    with db.write() as session:
        if not tasks.file_under(session, seen, conversation, routing=routing.digest):
            return False
        if seen.part_of not in (None, conversation):
            _changed(session, str(seen.part_of), quiet_s=0.0)
        if seen.part_of != conversation or seen.computed != seen.generation:
            _changed(session, conversation, quiet_s=max(0.0, quiet_s), source=seen.source_format)
    return True


def _changed(session: Session, task_id: str, *, quiet_s: float, source: str = "") -> None:
    tasks.touch(session, [task_id], source_format=source, quiet_s=quiet_s)


def list_tasks(
    db: Database,
    *,
    after: str | None,
    limit: int,
    route: str | None = None,
    state: str | None = None,
) -> list[tasks.TaskRecord]:
    """Page of tasks, newest first; what is due is computed before, up to a tick's worth."""
    settle_due(db)
    with db.read() as session:
        return tasks.page_of_tasks(session, after=after, limit=limit, route=route, state=state)


def unmatched_calls(db: Database) -> int:
    """Model calls in complete tasks that belong to no route."""
    with db.read() as session:
        return tasks.unmatched(session)


def get_task(db: Database, task_id: str) -> tasks.TaskRecord:
    """Task by id, computed from all spans that have arrived; a trace's id finds its conversation.

    Raises:
        NotFound: no such task.
    """
    with db.read() as session:
        routing = routing_of(session)
    _settle(db, task_id, routing, anyway=True)
    with db.read() as session:
        seen = tasks.unsettled(session, task_id)
        whole = None if seen is None else seen.part_of or seen.id
        parts = [] if whole is None else tasks.changed_parts(session, whole)
    for name in parts:  # the other traces of its conversation
        _settle(db, name, routing, anyway=True)
    if whole is not None:
        _settle(db, whole, routing, anyway=True)
    with db.read() as session:
        record = tasks.get(session, task_id)
    if record is None:
        raise NotFound(
            "is not a task", field="task", value=task_id, remedy="see gatekeeper traces list"
        )
    return record


def path_of(db: Database, task_id: str, *, speedup: float) -> PathView:
    """Compute a task's critical path, and how long it takes when all decoding is faster.

    Raises:
        NotFound: no such task.
        InputError: the speed-up is not above 0, or the task cannot be computed.
    """
    factor(speedup)
    record = get_task(db, task_id)
    with _turn:
        return _path(db, record, task_id, speedup=speedup)


def _path(db: Database, record: tasks.TaskRecord, task_id: str, *, speedup: float) -> PathView:
    with db.read() as session:
        routing = routing_of(session)
        seen = tasks.unsettled(session, record.id)
        found = read_spans(session, record.id, routing, limit=MAX_SPANS + 1)
    if record.spans_removed_at is not None:
        raise NotFound(
            "has figures but no spans any more: they were removed when they were old",
            field="task",
            value=task_id,
            remedy="read the task itself, or keep spans longer",
        )
    if seen is None or not found or len(found) > MAX_SPANS:
        raise InputError(
            f"has no spans, or more than {MAX_SPANS}",
            field="task",
            value=task_id,
            remedy="export smaller traces",
        )
    computed, problem = compute(seen, found, routing, speedup=speedup)
    if computed is None:
        raise InputError(str(problem), field="task", value=task_id, remedy="see its repairs")
    return PathView(record, computed.profile, computed.calls)
