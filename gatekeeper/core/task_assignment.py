"""Which calls of a task belong to which route, and which traces make one task.

A call whose ``gatekeeper.route`` (its own, or that of the nearest span above) is an existing
route's name belongs to that route. Otherwise the rules of all routes are tried, routes by name and
each one's rules in order. What matches nothing is counted, shown and never priced.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gatekeeper.core.arms import ARM_ATTRIBUTE, ARMS, MIXED
from gatekeeper.core.documents import check, read
from gatekeeper.core.model_calls import model_name
from gatekeeper.core.routing import ROUTE_ATTRIBUTE, CallFacts, Rule, explain
from gatekeeper.core.traces import SpanLink, assemble

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.tasks import Task
    from gatekeeper.core.traces import Span, Trace

__all__ = [
    "DEFAULT_QUIET_S",
    "AssignedCall",
    "RoutedRules",
    "Routing",
    "TaskRules",
    "arm_of",
    "assign",
    "conversation_of",
    "joined",
    "owners",
    "session_of",
]

DEFAULT_QUIET_S = 5.0
"""A task is complete when nothing has arrived for this long, unless its route says otherwise."""

_LONGEST_QUIET_S = 86_400.0
_AGENT = "gen_ai.agent.name"
_CONVERSATION = ("gen_ai.conversation.id", "session.id")
_SESSION = ("session.id", "gen_ai.conversation.id")


@dataclass(frozen=True)
class TaskRules:
    """How a route's calls make tasks.

    ``group_by``: ``trace`` (one trace is one task) or ``conversation`` (all traces that carry one
    conversation id are). ``quiet_s``: seconds without a new span after which a task is complete.
    ``session_attribute``: span attribute with the conversation, and with the session by which tasks
    are clustered; ``gen_ai.conversation.id`` and ``session.id`` when it is None.
    """

    group_by: str = "trace"
    quiet_s: float = DEFAULT_QUIET_S
    session_attribute: str | None = None

    def __post_init__(self) -> None:
        check(
            [
                (
                    "task_rules.group_by",
                    self.group_by,
                    self.group_by in ("trace", "conversation"),
                    "use trace or conversation",
                ),
                (
                    "task_rules.quiet_s",
                    self.quiet_s,
                    0 <= self.quiet_s <= _LONGEST_QUIET_S,
                    f"use seconds from 0 to {_LONGEST_QUIET_S:g}",
                ),
                (
                    "task_rules.session_attribute",
                    self.session_attribute,
                    self.session_attribute != "",
                    "name a span attribute, or leave it out",
                ),
            ]
        )

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, field: str = "task_rules") -> TaskRules:
        """Read ``{group_by, quiet_s, session_attribute}``, each of them optional.

        Raises:
            UnknownKey: another key.
            InputError: a wrong type, or a value out of range.
        """
        return read(cls, dict(document), field=field)


@dataclass(frozen=True)
class RoutedRules:
    """One route as far as it takes part in the assignment."""

    name: str
    rules: tuple[Rule, ...] = ()
    tasks: TaskRules = TaskRules()


@dataclass(frozen=True)
class Routing:
    """All routes, by name. Two of equal ``digest`` assign every call alike."""

    routes: tuple[RoutedRules, ...] = ()

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule in the order in which it is tried."""
        return tuple(rule for one in self.routes for rule in one.rules)

    @cached_property
    def attributes(self) -> frozenset[str]:
        """Span attributes whose values decide on a call's route, a task or its session."""
        named = {name for rule in self.rules for name, _ in rule.attributes}
        ids = {one.tasks.session_attribute for one in self.routes} - {None}
        sessions = {str(name) for name in (*_SESSION, *ids)}
        resources = {f"resource.{name}" for name in sessions}
        return frozenset({*named, *sessions, *resources, ROUTE_ATTRIBUTE, _AGENT})

    @property
    def least_quiet_s(self) -> float:
        """Earliest moment at which any task may be complete, in seconds after its last span."""
        return min([DEFAULT_QUIET_S, *(one.tasks.quiet_s for one in self.routes)])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that the assignment depends on."""
        content = [
            [one.name, [rule.to_dict() for rule in one.rules], asdict(one.tasks)]
            for one in self.routes
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def task_rules(self, routes: Iterable[str]) -> tuple[TaskRules, ...]:
        """The rules for tasks of these routes; the default where there is no route."""
        wanted = set(routes)
        return tuple(one.tasks for one in self.routes if one.name in wanted) or (TaskRules(),)


@dataclass(frozen=True)
class AssignedCall:
    """A model call (``work`` is its index in the task), its route or None, and why in words.

    ``arm`` is what its span, or the nearest one above that has it, says in ``gatekeeper.arm``.
    """

    work: int
    span_id: str
    name: str
    route: str | None
    why: str
    arm: str | None = None


def assign(task: Task, routing: Routing) -> tuple[AssignedCall, ...]:
    """Assign every model call of a task, leaves only, to a route or to none."""
    names = {one.name for one in routing.routes}
    rules = routing.rules
    routes, agents, arms = (_inherited(task, a) for a in (ROUTE_ATTRIBUTE, _AGENT, ARM_ATTRIBUTE))
    assigned = []
    for i, call in task.calls:
        span = task.works[i].span
        named = routes[i]
        facts = CallFacts(
            service=span.service,
            agent=agents[i],
            model=call.model or model_name(span.attributes),
            operation=_text(span.attributes.get("gen_ai.operation.name")),
            attributes={**span.attributes, **({} if named is None else {ROUTE_ATTRIBUTE: named})},
        )
        if named in names:
            route: str | None = named
            why = f"{named}: named by {ROUTE_ATTRIBUTE}."
        else:
            found = explain(rules, facts)
            route, why = found.route, found.sentence
            if route is None:
                why = _unrouted(why, named, ruled=bool(rules))
        assigned.append(AssignedCall(i, span.span_id, span.name, route, why, arms[i]))
    return tuple(assigned)


def _unrouted(why: str, named: str | None, *, ruled: bool) -> str:
    """Why a call has no route, and what would give it one."""
    if named is None:
        if ruled:
            return why
        return (
            f"No route: its span names none in {ROUTE_ATTRIBUTE}, and no route has rules "
            "(the key rules in the YAML of gatekeeper route set NAME --file FILE)."
        )
    if "/" in named:
        cure = (
            "cannot be a route's name ('/' stands in it): give a route, in the YAML of gatekeeper "
            f"route set NAME --file FILE, the rule {ROUTE_ATTRIBUTE}: {json.dumps(named)}"
        )
    else:
        cure = (
            f"is no route yet: gatekeeper route set {shlex.quote(named)} --slice SLICE "
            "--artifact DIGEST --policy POLICY"
        )
    return f"{why if ruled else 'No route.'} It names {named}, which {cure}."


def arm_of(calls: Iterable[AssignedCall], route: str) -> str | None:
    """Arm of a route's calls in one task: theirs if it is one, else ``mixed``; None where none has."""
    arms = {call.arm for call in calls if call.route == route}
    if arms == {None}:
        return None
    (only, *others) = arms
    return MIXED if others or only not in ARMS else only


def _inherited(task: Task, attribute: str) -> list[str | None]:
    """Attribute of every span: its own, or that of the nearest span above that has it."""
    found = [_text(work.span.attributes.get(attribute)) or None for work in task.works]
    if any(found):
        for i in _parents_first(task):
            parent = task.works[i].parent
            if found[i] is None and parent is not None:
                found[i] = found[parent]
    return found


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def owners(task: Task) -> tuple[int | None, ...]:
    """For every span of a task the model call it is part of, itself included; None outside all.

    A server may write a call's phases as spans below it: their time is that call's.
    """
    calls = dict(task.calls)
    found: list[int | None] = [None] * len(task.works)
    for i in _parents_first(task):
        parent = task.works[i].parent
        found[i] = i if i in calls else None if parent is None else found[parent]
    return tuple(found)


def _parents_first(task: Task) -> list[int]:
    children: dict[int | None, list[int]] = {}
    for i, work in enumerate(task.works):
        children.setdefault(work.parent, []).append(i)
    order = list(children.get(None, ()))
    for i in order:  # grows while it is read
        order.extend(children.get(i, ()))
    return order


def session_of(spans: Sequence[Span], rules: Iterable[TaskRules], *, default: str) -> str:
    """Return the session by which tasks are clustered; ``default`` where no span names one."""
    own = [r.session_attribute for r in rules if r.session_attribute is not None]
    return _first(spans, (*own, *_SESSION)) or default


def conversation_of(spans: Sequence[Span], rules: Iterable[TaskRules]) -> str | None:
    """Return the conversation that a trace is part of, None where it is a task of its own."""
    grouping = [r for r in rules if r.group_by == "conversation"]
    if not grouping:
        return None
    own = [r.session_attribute for r in grouping if r.session_attribute is not None]
    return _first(spans, own or _CONVERSATION)


def _first(spans: Sequence[Span], attributes: Iterable[str]) -> str | None:
    for name in attributes:
        for span in spans:
            for key in (name, f"resource.{name}"):
                value = span.attributes.get(key)
                if isinstance(value, str | int) and str(value).strip():
                    return str(value)
    return None


def joined(task_id: str, source_format: str, spans: Iterable[Span]) -> tuple[Trace, ...]:
    """One trace of the spans of several: ids are prefixed with the trace they were unique in."""
    return assemble(
        (
            replace(
                span,
                trace_id=task_id,
                span_id=f"{span.trace_id}:{span.span_id}",
                parent_id=None if span.parent_id is None else f"{span.trace_id}:{span.parent_id}",
                links=tuple(SpanLink(task_id, f"{k.trace_id}:{k.span_id}") for k in span.links),
            )
            for span in spans
        ),
        source_format=source_format,
    )
