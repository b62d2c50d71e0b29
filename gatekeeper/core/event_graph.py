"""The event graph of a task: what had to end before what could start.

Every span has an *open* and a *close* moment and, between them, the pieces of its own segments.
Edges:

    fork            parent → child, out of the very piece that was running when the child started
    join            child → close of the nearest ancestor that lasts at least as long (an async
                    child that outlives its parent is never cut off at the parent's end)
    happens-before  every sibling that ended at or before a start → that start
    cause           span link → linking span; tool-call id: model call → tool → next model call

Each gap is one lag per node, lag(v) = start(v) − max over predecessors of their end: fixed, and
never scaled. Siblings join a chain of "completed so far" moments in order of their ends, so that
happens-before costs one edge per span, not one per pair. All edges go forward in time; spans
that touch at one nanosecond are ordered by their canonical index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter, sub
from typing import TYPE_CHECKING, NamedTuple

from gatekeeper.core.causes import causes_of
from gatekeeper.core.span_kinds import MODEL
from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.tasks import Task

__all__ = ["EventGraph", "build_graph"]


@dataclass(frozen=True)
class EventGraph:
    """Nodes in topological order, one entry per node in each tuple.

    Times are integer nanoseconds since the task's start. ``kind`` is None for a moment (open,
    close, "completed so far"), which has no duration. ``lag_kind`` says as what the gap before
    the node counts. ``work`` is the index of the span, None for the two ends of the task.
    ``in_call`` marks pieces of model calls.
    """

    predecessors: tuple[tuple[int, ...], ...]
    start_ns: tuple[int, ...]
    duration_ns: tuple[int, ...]
    lag_ns: tuple[int, ...]
    kind: tuple[str | None, ...]
    lag_kind: tuple[str, ...]
    work: tuple[int | None, ...]
    in_call: tuple[bool, ...]
    repairs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


def build_graph(task: Task, *, happens_before: bool = True) -> EventGraph:
    """Build the event graph; without ``happens_before`` only explicit causes order siblings.

    Raises:
        TraceError: the causes run in a circle, which no clock can produce.
    """
    return _Builder(task, happens_before=happens_before).build()


_LATER: tuple[int, ...] = ()
"""Stands for what a node waits for, until all spans have their nodes."""

_NO_PIECES: tuple[list[int], list[int]] = ([], [])


class _Completed(NamedTuple):
    """Members of a scope in order of (end, index), and by which node each was completed."""

    ends: list[int]
    members: list[int]
    nodes: list[int]


class _Builder:
    """Collects nodes and edges in canonical order, then sorts them topologically.

    A span that nothing starts out of needs no nodes beside its own pieces: the first is its open,
    the last its close. A tree of a million spans is mostly these. Spans and nodes are columns of
    numbers here: a million small objects would be looked at by every garbage collection.
    """

    def __init__(self, task: Task, *, happens_before: bool) -> None:
        self.works = works = task.works
        self.zero, self.finish = task.start_ns, task.end_ns
        self.happens_before = happens_before
        self.live = [i for i, work in enumerate(works) if not work.absorbed]
        self.begins = [work.span.start_ns for work in works]
        self.stops = [work.end_ns for work in works]
        # What is absorbed has nothing but absorbed spans below it.
        self.parent = [work.parent for work in works]
        # Of each node, in the order in which they were made.
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.work: list[int | None] = []
        self.kind: list[str | None] = []
        self.preds: list[tuple[int, ...]] = []
        self.lag_kind: dict[int, str] = {}  # of nodes whose gap counts as anything but "other"
        self.optional: set[tuple[int, int]] = set()
        self.open = [0] * len(works)
        self.close: dict[int, int] = {}
        # Of every span that something starts out of: ends and nodes of its pieces, kind of its gaps.
        self.pieces: dict[int, tuple[list[int], list[int]]] = {}
        self.gaps: dict[int, str] = {}
        self.done: dict[int | None, _Completed] = {}
        self.order = _parents_first(self.live, self.parent)
        self.home, self.door, self.finished = _scopes(
            self.order, self.parent, self.begins, self.stops
        )
        self.source = self._node(self.zero, self.zero, None, None, ())

    def build(self) -> EventGraph:
        causes = causes_of(self.works)
        self._spans(causes)
        self._completions()
        preds, open_, close = self.preds, self.open, self.close
        for i in self.live:
            preds[open_[i]] = self._before(i)
        for i in self.pieces:
            if i in close:
                self._join(close[i], i, last=self._last_of(i))
        for cause, effect in causes:
            self._cause(cause, effect)
        sink = self._node(self.finish, self.finish, None, None, _LATER)
        self._join(sink, None, last=self.source)
        preds[sink] += tuple([open_[i] for i in self.live if i not in close])
        return self._sorted()

    def _node(
        self, start: int, end: int, work: int | None, kind: str | None, on: tuple[int, ...]
    ) -> int:
        """Add a node that waits for the nodes ``on``."""
        self.starts.append(start)
        self.ends.append(end)
        self.work.append(work)
        self.kind.append(kind)
        self.preds.append(on)
        return len(self.preds) - 1

    def _spans(self, causes: Sequence[tuple[int, int]]) -> None:
        """Nodes of every span, cut where something starts out of its middle."""
        works, node = self.works, self._node
        sources = bytearray(len(works))
        cuts: dict[int, set[int]] = {}
        forked = ((self.parent[i], i) for i in self.live)
        for source, effect in chain(forked, causes):
            if source is not None:
                sources[source] = True
                if works[source].phases:
                    cuts.setdefault(source, set()).add(self.begins[effect])
        for i in self.live:
            phases, begin, end = works[i].phases, self.begins[i], self.stops[i]
            if (
                phases
                and not sources[i]
                and phases[0].start_ns == begin
                and phases[-1].end_ns == end
            ):
                on = _LATER
                for phase in phases:
                    at = node(phase.start_ns, phase.end_ns, i, phase.kind, on)
                    on = (at,)
                self.open[i] = at - len(phases) + 1
                self.close[i] = at
                continue
            at = self.open[i] = node(begin, begin, i, None, _LATER)
            self.pieces[i] = self._cut(i, at, sorted(cuts.get(i, ()))) if phases else _NO_PIECES
            self.gaps[i] = works[i].lag_kind
            if end is not None:
                at = self.close[i] = node(end, end, i, None, _LATER)
                self.lag_kind[at] = self.gaps[i]

    def _cut(self, i: int, at: int, times: list[int]) -> tuple[list[int], list[int]]:
        """Ends and nodes of the pieces of one span after its open ``at``, cut at ``times``."""
        ends: list[int] = []
        nodes: list[int] = []
        for phase in self.works[i].phases:
            inner = times[bisect_right(times, phase.start_ns) : bisect_left(times, phase.end_ns)]
            begin = phase.start_ns
            for stop in (*inner, phase.end_ns):
                at = self._node(begin, stop, i, phase.kind, (at,))
                begin = stop
                ends.append(stop)
                nodes.append(at)
        return ends, nodes

    def _completions(self) -> None:
        """Chain the closes of each scope in order of their ends."""
        found: dict[int | None, list[tuple[int, int]]] = {}
        for i in self.order:
            end = self.stops[i]
            if end is not None:
                found.setdefault(self.home[i], []).append((end, i))
        for scope, keys in found.items():
            keys.sort()
            nodes: list[int] = []
            before = keys[0]
            for key in keys:
                end, i = key
                at = self.close[i]
                if nodes and not self._follows(i, scope, before):
                    at = self._node(end, end, scope, None, (nodes[-1], at))
                nodes.append(at)
                before = key
            self.done[scope] = _Completed([end for end, _ in keys], [i for _, i in keys], nodes)

    def _follows(self, i: int, scope: int | None, before: tuple[int, int]) -> bool:
        """Whether span ``i`` itself waited for all that its scope had completed before its end."""
        return (
            self.happens_before
            and before < (self.begins[i], i)
            and (scope == self._finished(self.parent[i]) or scope == self._finished(self.door[i]))
        )

    def _finished(self, i: int | None) -> int | None:
        return None if i is None else self.finished[i]

    def _before(self, i: int) -> tuple[int, ...]:
        """Predecessors of a span's open: the fork, and what its siblings had completed."""
        start, parent, scope = self.begins[i], self.parent[i], self.door[i]
        if scope is None:
            fork = self.source
        else:
            around, end = self.stops[scope], self.stops[i]
            outlives = around is not None and (start > around if end is None else end > around)
            self.lag_kind[self.open[i]] = self.gaps[scope]
            fork = self._running(scope, start, may_close=outlives)
        if not self.happens_before:
            return (fork,)
        level = self._finished(parent)
        near = self._completed(level, start, i)
        found = (fork,) if near is None else (fork, near)
        if scope != parent:
            other = self._finished(scope)
            far = None if other == level else self._completed(other, start, i)
            found = found if far is None else (*found, far)
        return found

    def _completed(self, scope: int | None, time: int, i: int) -> int | None:
        """Node by which a scope had completed all that ended before span ``i`` started."""
        done = self.done.get(scope)
        if done is None:
            return None
        ends = done.ends
        place = bisect_left(ends, time)
        if place < len(ends) and ends[place] == time:  # what touches is ordered by index
            place = bisect_left(done.members, i, place, bisect_right(ends, time, place))
        return done.nodes[place - 1] if place else None

    def _running(self, i: int, time: int, *, may_close: bool) -> int:
        """Latest node of span ``i``, which something starts out of, that had ended at ``time``."""
        end = self.stops[i]
        if may_close and end is not None and end <= time:
            return self.close[i]
        ends, nodes = self.pieces[i]
        place = bisect_right(ends, time)
        return nodes[place - 1] if place else self.open[i]

    def _last_of(self, i: int) -> int:
        nodes = self.pieces[i][1]
        return nodes[-1] if nodes else self.open[i]

    def _join(self, node: int, scope: int | None, *, last: int) -> None:
        done = self.done.get(scope)
        self.preds[node] += (last,) if done is None else (last, done.nodes[-1])

    def _cause(self, cause: int, effect: int) -> None:
        start = self.begins[effect]
        if self.begins[cause] > start or self.parent[effect] == cause:
            return
        edge = (self._running(cause, start, may_close=True), self.open[effect])
        if edge[0] not in self.preds[edge[1]]:
            self.optional.add(edge)
            self.preds[edge[1]] += (edge[0],)

    def _sorted(self) -> EventGraph:
        repairs: tuple[str, ...] = ()
        order = _topological(self.preds, self.starts)
        if order is None and self.optional:
            for cause, effect in self.optional:
                if self.ends[cause] == self.starts[effect]:
                    self.preds[effect] = tuple([p for p in self.preds[effect] if p != cause])
            repairs = ("causes at one instant ran in a circle: links of no length left out",)
            order = _topological(self.preds, self.starts)
        if order is None:
            raise TraceError(
                "its spans wait for each other in a circle",
                field="traceId",
                value=self.works[0].span.trace_id,
                remedy="report this trace: no real clock produces it",
            )
        place = [0] * len(order)
        for at, node in enumerate(order):
            place[node] = at
        pick = itemgetter(*order)  # never of one: a task has two ends
        starts, ends = pick(self.starts), pick(self.ends)
        works, kinds = pick(self.work), pick(self.kind)
        preds: list[tuple[int, ...]] = []
        lags: list[int] = []
        for start, before in zip(starts, pick(self.preds), strict=True):
            if len(before) == 1:
                at = place[before[0]]
                preds.append((at,))
                lags.append(start - ends[at])
            elif len(before) == 2:  # noqa: PLR2004 - the fork and what was completed: a third of all
                at, other = place[before[0]], place[before[1]]
                preds.append((at, other) if at < other else (other, at) if other < at else (at,))
                lags.append(start - (max(ends[other], ends[at])))
            else:
                among = sorted({place[p] for p in before})
                preds.append(tuple(among))
                lags.append(start - max([ends[p] for p in among], default=self.zero))
        calls = [work.kind in (MODEL, "prefill", "decode") for work in self.works]
        return EventGraph(
            predecessors=tuple(preds),
            start_ns=tuple([start - self.zero for start in starts]),
            duration_ns=tuple(map(sub, ends, starts)),
            lag_ns=tuple(lags),
            kind=kinds,
            lag_kind=tuple([self.lag_kind.get(node, "other") for node in order]),
            work=works,
            in_call=tuple(
                [
                    kind is not None and work is not None and calls[work]
                    for kind, work in zip(kinds, works, strict=True)
                ]
            ),
            repairs=repairs,
        )


def _parents_first(live: Sequence[int], parents: Sequence[int | None]) -> list[int]:
    children: dict[int | None, list[int]] = {}
    for i in live:
        children.setdefault(parents[i], []).append(i)
    order = list(children.get(None, ()))
    for i in order:  # grows while it is read
        if i in children:
            order += children[i]
    return order


def _scopes(
    order: Sequence[int],
    parents: Sequence[int | None],
    begins: Sequence[int],
    stops: Sequence[int | None],
) -> tuple[list[int | None], list[int | None], list[int | None]]:
    """Where spans are joined, where they fork from, and who stands in for the unfinished.

    ``home``: nearest finished ancestor that lasts at least as long. ``door``: nearest ancestor
    that had begun. ``finished``: the span itself or its nearest finished ancestor. Each follows
    the answers already found, so deep chains of ever later ends or earlier starts stay linear.
    """
    home: list[int | None] = [None] * len(parents)
    door: list[int | None] = [None] * len(parents)
    finished: list[int | None] = [None] * len(parents)
    for i in order:
        start, end, above = begins[i], stops[i], parents[i]
        at = above
        while at is not None and not _lasts(stops[at], end):
            at = home[at]
        home[i] = at
        at = above
        while at is not None and begins[at] > start:
            at = door[at]
        door[i] = at
        if end is not None:
            finished[i] = i
        elif above is not None:
            finished[i] = finished[above]
    return home, door, finished


def _lasts(end: int | None, least: int | None) -> bool:
    return end is not None and (least is None or end >= least)


def _topological(preds: Sequence[Sequence[int]], starts: Sequence[int]) -> list[int] | None:
    """Order of the nodes, by start as far as edges allow; None where they form a circle.

    Edges go forward in time, so that by the time a node comes up nearly always all that it waits
    for is placed; what is left of one instant is settled depth first.
    """
    waiting, begun, placed = 0, 1, 2
    state = bytearray(len(preds))
    order: list[int] = []
    for first in sorted(range(len(preds)), key=starts.__getitem__):
        if state[first] == placed:
            continue
        for p in preds[first]:
            if state[p] != placed:
                break
        else:
            state[first] = placed
            order.append(first)
            continue
        stack = [first]
        while stack:
            node = stack[-1]
            if state[node] == placed:
                stack.pop()
                continue
            open_ = [p for p in preds[node] if state[p] != placed]
            if not open_:
                state[node] = placed
                order.append(stack.pop())
                continue
            state[node] = begun
            if any(state[p] != waiting for p in open_):
                return None
            stack += open_
    return order
