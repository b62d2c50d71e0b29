"""What-if: which work of a task gets faster, and how many times as fast.

A change names a segment kind, or a kind and the name of the work: ``decode``, ``tool:search``,
``decode:gpt-4*``. Gaps are never scaled (`gatekeeper.core.event_graph`): a tool that calls a model
is as fast as its own pieces, and what lies between them is a lag.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING

from gatekeeper.core.critical_path import factor, saving, stretch
from gatekeeper.core.model_calls import model_name
from gatekeeper.core.span_kinds import KINDS
from gatekeeper.core.task_assignment import Routing, assign, owners
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.critical_path import Step
    from gatekeeper.core.event_graph import EventGraph
    from gatekeeper.core.tasks import Task

__all__ = [
    "MODEL_KINDS",
    "Change",
    "Effect",
    "Scope",
    "WhatIf",
    "effects_of",
    "names_of",
    "scope_of",
]

MODEL_KINDS = ("queue", "prefill", "decode")
"""Kinds that only model calls have: what a route can be asked about, and what needs a split."""

_TOOL_NAMES = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name")
_NO_ROUTES = Routing()
_ZERO, _ONE = Fraction(0), Fraction(1)
_EXAMPLE = "use KIND=S or KIND:NAME=S, such as decode=2 or tool:search=1.5"


@dataclass(frozen=True)
class Change:
    """All work of one kind, or that of one name, done ``speedup`` times as fast.

    ``name`` is a pattern with ``*`` and ``?`` over a span's name, its tool's and its model's; None
    stands for any.

    Raises:
        InputError: an unknown kind, an empty name, or a speed-up that is not above 0.
    """

    kind: str
    speedup: Fraction
    name: str | None = None

    def __post_init__(self) -> None:
        factor(self.speedup)
        if self.kind not in KINDS:
            raise InputError(
                "is not a segment kind",
                field="speedup",
                value=self.segment,
                remedy=f"use one of {', '.join(KINDS)}; a name stands after it: tool:search",
            )
        if self.name == "":
            raise InputError(
                "has no name", field="speedup", value=self.segment, remedy="as in tool:search=1.5"
            )

    @classmethod
    def parse(cls, text: str) -> Change:
        """Read ``KIND=S`` or ``KIND:NAME=S``; the speed-up is the exact decimal that was typed.

        Raises:
            InputError: it is not of this form.
        """
        segment, equals, ratio = text.rpartition("=")
        if not equals or not segment:
            raise InputError("names no work", field="speedup", value=text, remedy=_EXAMPLE)
        kind, colon, name = segment.partition(":")
        return cls(kind.strip(), 1 / factor(ratio.strip()), name.strip() if colon else None)

    @property
    def segment(self) -> str:
        """What changes, as it is typed: ``decode`` or ``tool:search``."""
        return self.kind if self.name is None else f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class WhatIf:
    """Changes made at once. Where two touch the same work, a named one wins, then the first.

    With a ``route``, only model calls that belong to it under ``routing`` change.

    Raises:
        InputError: no change, a segment twice, or a route with work that no route has.
    """

    changes: tuple[Change, ...]
    route: str | None = None
    routing: Routing = _NO_ROUTES

    def __post_init__(self) -> None:
        if not self.changes:
            raise InputError("changes nothing", field="speedup", remedy=_EXAMPLE)
        seen: set[str] = set()
        for change in self.changes:
            if change.segment in seen:
                raise InputError(
                    "is given twice",
                    field="speedup",
                    value=change.segment,
                    remedy="give each segment one speed-up",
                )
            seen.add(change.segment)
            if self.route is not None and change.kind not in MODEL_KINDS:
                raise InputError(
                    "belongs to no route",
                    field="speedup",
                    value=change.segment,
                    remedy=f"leave --route out, or change {', '.join(MODEL_KINDS)}",
                )

    @classmethod
    def decode(cls, speedup: Fraction | float | str) -> WhatIf:
        """All decoding ``speedup`` times as fast."""
        return cls((Change("decode", 1 / factor(speedup)),))

    @property
    def decode_speedup(self) -> Fraction:
        """Speed-up of decoding as such; 1 where it does not change, or only under some name."""
        found = (c.speedup for c in self.changes if c.segment == "decode")
        return next(found, _ONE)

    @property
    def decode_alone(self) -> bool:
        """Whether all that changes is decoding as such, of every route."""
        return self.route is None and [c.segment for c in self.changes] == ["decode"]

    @property
    def needs_split(self) -> bool:
        """Whether the answer needs model calls split into their phases (not grade D)."""
        return any(change.kind in MODEL_KINDS for change in self.changes)

    def only(self, index: int) -> WhatIf:
        """One of the changes by itself."""
        return replace(self, changes=(self.changes[index],))


@dataclass(frozen=True)
class Scope:
    """Which spans of one task each change touches; None where it is all of its kind."""

    what_if: WhatIf
    works: tuple[frozenset[int] | None, ...]

    def touches(self, index: int, kind: str | None, work: int | None) -> bool:
        """Whether a node of this kind and span is work that change ``index`` speaks of."""
        spans = self.works[index]
        return kind == self.what_if.changes[index].kind and (spans is None or work in spans)

    def factors(
        self, graph: EventGraph, task: Task, *, speedups: Sequence[Fraction] | None = None
    ) -> tuple[Fraction, ...]:
        """Duration factor of each node.

        Args:
            graph: an event graph of the task.
            task: the task the scope was made of, or one with the same spans.
            speedups: one for each change instead of its own.
        """
        given = [c.speedup for c in self.what_if.changes] if speedups is None else speedups
        return self._stretch(graph, task, [1 / s for s in given])

    def gone(self, graph: EventGraph, task: Task, index: int | None = None) -> tuple[Fraction, ...]:
        """Duration factor of each node if the work of one change, or of all, took no time at all."""
        if index is None:
            return self._stretch(graph, task, [_ZERO] * len(self.works))
        alone = Scope(self.what_if.only(index), (self.works[index],))
        return alone._stretch(graph, task, [_ZERO])

    def _stretch(
        self, graph: EventGraph, task: Task, factors: Sequence[Fraction]
    ) -> tuple[Fraction, ...]:
        kinds: dict[str, Fraction] = {}
        works: dict[int, dict[str, Fraction]] = {}
        # What is written last wins: first changes after later ones, named after unnamed.
        order = sorted(
            range(len(factors)), key=lambda k: (self.what_if.changes[k].name is not None, -k)
        )
        for k in order:
            change, spans, x = self.what_if.changes[k], self.works[k], factors[k]
            if spans is None:
                kinds[change.kind] = x
            else:
                for i in spans:
                    works.setdefault(i, {})[change.kind] = x
        return stretch(graph, task, kinds=kinds, works=works)


def scope_of(task: Task, what_if: WhatIf) -> Scope:
    """Find the spans that each change touches."""
    calls = None if what_if.route is None else _calls_of(task, what_if)
    if calls is None and all(change.name is None for change in what_if.changes):
        return Scope(what_if, (None,) * len(what_if.changes))
    owner = owners(task)
    found: list[frozenset[int] | None] = []
    for change in what_if.changes:
        if change.name is None and calls is None:
            found.append(None)
            continue
        found.append(
            frozenset(
                i
                for i in range(len(task.works))
                if (calls is None or owner[i] in calls)
                and (change.name is None or _named(task, i, owner[i], change.name))
            )
        )
    return Scope(what_if, tuple(found))


@dataclass(frozen=True)
class Effect:
    """What one change by itself means for a task; times are nanoseconds.

    ``spans`` have such work, ``work_ns`` in all and ``on_path_ns`` on the critical path. It saves
    ``saving_ns``, and ``ceiling_ns`` if it took no time at all; both None where the task is not
    priced. Savings of several changes at once need not be their sum.
    """

    change: Change
    spans: int
    work_ns: int
    on_path_ns: int
    saving_ns: Fraction | None
    ceiling_ns: Fraction | None


def effects_of(
    scope: Scope, task: Task, graph: EventGraph, path: Sequence[Step], *, priced: bool
) -> tuple[Effect, ...]:
    """Take a what-if apart, change by change."""
    on_path = {step.node for step in path}
    found = []
    for index, change in enumerate(scope.what_if.changes):
        spans: set[int | None] = set()
        work = walked = 0
        for node, kind in enumerate(graph.kind):
            if kind == change.kind and scope.touches(index, kind, graph.work[node]):
                spans.add(graph.work[node])
                work += graph.duration_ns[node]
                walked += graph.duration_ns[node] if node in on_path else 0
        alone = Scope(scope.what_if.only(index), (scope.works[index],))
        found.append(
            Effect(
                change=change,
                spans=len(spans),
                work_ns=work,
                on_path_ns=walked,
                saving_ns=saving(graph, alone.factors(graph, task)) if priced else None,
                ceiling_ns=saving(graph, scope.gone(graph, task, index)) if priced else None,
            )
        )
    return tuple(found)


def names_of(task: Task, index: int) -> tuple[str, ...]:
    """Names under which a change finds a span: its own, its tool's, its model's."""
    span = task.works[index].span
    model = model_name(span.attributes)
    tools = (span.attributes.get(key) for key in _TOOL_NAMES)
    names = (*(t for t in tools if isinstance(t, str)), *([] if model is None else [model]))
    return tuple(dict.fromkeys((span.name, *names)))


def _named(task: Task, index: int, owner: int | None, pattern: str) -> bool:
    """Whether a span, or the model call that it is a phase of, has a name of this pattern."""
    names = names_of(task, index)
    if owner is not None and owner != index:
        names += names_of(task, owner)
    return any(fnmatchcase(name, pattern) for name in names)


def _calls_of(task: Task, what_if: WhatIf) -> frozenset[int]:
    return frozenset(c.work for c in assign(task, what_if.routing) if c.route == what_if.route)
