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
from operator import itemgetter, sub
from typing import TYPE_CHECKING

from gatekeeper.core.causes import causes_of
from gatekeeper.core.span_kinds import MODEL
from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gatekeeper.core.tasks import Task, Work

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


_Node = tuple[int, int, int | None, str | None]
"""Start, end, work and kind of a node, in the order in which they were made."""

_LATER: list[int] = []
"""Stands for what an open waits for, until all spans have their nodes."""

_NO_PIECES: tuple[list[int], list[int]] = ([], [])


class _Builder:
    """Collects nodes and edges in canonical order, then sorts them topologically.

    A span that nothing starts out of needs no nodes beside its own pieces: the first is its open,
    the last its close. A tree of a million spans is mostly these.
    """

    def __init__(self, task: Task, *, happens_before: bool) -> None:
        self.works = task.works
        self.zero = task.start_ns
        self.happens_before = happens_before
        self.live = [i for i, work in enumerate(self.works) if not work.absorbed]
        self.nodes: list[_Node] = []
        self.preds: list[list[int]] = []
        self.lag_kind: dict[int, str] = {}  # of nodes whose gap counts as anything but "other"
        self.optional: set[tuple[int, int]] = set()
        self.open: dict[int, int] = {}
        self.close: dict[int, int] = {}
        # Ends and nodes of the pieces of every span that something starts out of.
        self.pieces: dict[int, tuple[list[int], list[int]]] = {}
        # Completed so far, per scope: (end, index) of each member and its node.
        self.done: dict[int | None, tuple[list[tuple[int, int]], list[int]]] = {}
        # What is absorbed has nothing but absorbed spans below it.
        self.parent = [work.parent for work in self.works]
        self.home, self.door, self.finished = _scopes(self.works, self.live, self.parent)
        self.source = self._node(task.start_ns, task.start_ns, None, None, [])
        self.finish = task.end_ns

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
        sink = self._node(self.finish, self.finish, None, None, [])
        self._join(sink, None, last=self.source)
        preds[sink].extend(open_[i] for i in self.live if i not in close)
        return self._sorted()

    def _node(self, start: int, end: int, work: int | None, kind: str | None, on: list[int]) -> int:
        """Add a node that waits for the nodes ``on``."""
        self.nodes.append((start, end, work, kind))
        self.preds.append(on)
        return len(self.nodes) - 1

    def _spans(self, causes: Iterable[tuple[int, int]]) -> None:
        """Nodes of every span, cut where something starts out of its middle."""
        works, node = self.works, self._node
        forked = [(p, i) for i in self.live if (p := self.parent[i]) is not None]
        sources: set[int] = set()
        cuts: dict[int, set[int]] = {}
        for source, effect in (*forked, *causes):
            sources.add(source)
            if works[source].phases:
                cuts.setdefault(source, set()).add(works[effect].span.start_ns)
        for i in self.live:
            work = works[i]
            phases, begin, end = work.phases, work.span.start_ns, work.end_ns
            if (
                phases
                and i not in sources
                and phases[0].start_ns == begin
                and phases[-1].end_ns == end
            ):
                on = _LATER
                for phase in phases:
                    at = node(phase.start_ns, phase.end_ns, i, phase.kind, on)
                    on = [at]
                self.open[i] = at - len(phases) + 1
                self.close[i] = at
                continue
            at = self.open[i] = node(begin, begin, i, None, _LATER)
            self.pieces[i] = self._cut(i, at, sorted(cuts.get(i, ()))) if phases else _NO_PIECES
            if end is not None:
                at = self.close[i] = node(end, end, i, None, [])
                self.lag_kind[at] = work.lag_kind

    def _cut(self, i: int, at: int, times: list[int]) -> tuple[list[int], list[int]]:
        """Ends and nodes of the pieces of one span after its open ``at``, cut at ``times``."""
        ends: list[int] = []
        nodes: list[int] = []
        for phase in self.works[i].phases:
            inner = times[bisect_right(times, phase.start_ns) : bisect_left(times, phase.end_ns)]
            begin = phase.start_ns
            for stop in (*inner, phase.end_ns):
                at = self._node(begin, stop, i, phase.kind, [at])
                begin = stop
                ends.append(stop)
                nodes.append(at)
        return ends, nodes

    def _completions(self) -> None:
        """Chain the closes of each scope in order of their ends."""
        members: dict[int | None, list[tuple[int, int]]] = {}
        for i, scope in self.home.items():
            end = self.works[i].end_ns
            if end is not None:
                members.setdefault(scope, []).append((end, i))
        for scope, keys in members.items():
            keys.sort()
            nodes: list[int] = []
            for k, (end, i) in enumerate(keys):
                at = self.close[i]
                if k and not self._follows(i, scope, keys[k - 1]):
                    at = self._node(end, end, scope, None, [nodes[-1], at])
                nodes.append(at)
            self.done[scope] = (keys, nodes)

    def _follows(self, i: int, scope: int | None, before: tuple[int, int]) -> bool:
        """Whether span ``i`` itself waited for all that its scope had completed before its end."""
        return (
            self.happens_before
            and before < (self.works[i].span.start_ns, i)
            and scope in (self.finished[self.parent[i]], self.finished[self.door[i]])
        )

    def _before(self, i: int) -> list[int]:
        """Predecessors of a span's open: the fork, and what its siblings had completed."""
        work = self.works[i]
        start = work.span.start_ns
        scope = self.door[i]
        if scope is None:
            found = [self.source]
        else:
            around = self.works[scope]
            end = around.end_ns
            outlives = end is not None and (
                start > end if work.end_ns is None else work.end_ns > end
            )
            self.lag_kind[self.open[i]] = around.lag_kind
            found = [self._running(scope, start, may_close=outlives)]
        if not self.happens_before:
            return found
        levels = (self.finished[self.parent[i]], self.finished[scope])
        for level in levels if levels[0] != levels[1] else levels[:1]:
            if level in self.done:
                keys, nodes = self.done[level]
                place = bisect_left(keys, (start, i))
                if place:
                    found.append(nodes[place - 1])
        return found

    def _running(self, i: int, time: int, *, may_close: bool) -> int:
        """Latest node of span ``i``, which something starts out of, that had ended at ``time``."""
        end = self.works[i].end_ns
        if may_close and end is not None and end <= time:
            return self.close[i]
        ends, nodes = self.pieces[i]
        place = bisect_right(ends, time)
        return nodes[place - 1] if place else self.open[i]

    def _last_of(self, i: int) -> int:
        nodes = self.pieces[i][1]
        return nodes[-1] if nodes else self.open[i]

    def _join(self, node: int, scope: int | None, *, last: int) -> None:
        self.preds[node].append(last)
        if scope in self.done:
            self.preds[node].append(self.done[scope][1][-1])

    def _cause(self, cause: int, effect: int) -> None:
        start = self.works[effect].span.start_ns
        if self.works[cause].span.start_ns > start or self.parent[effect] == cause:
            return
        edge = (self._running(cause, start, may_close=True), self.open[effect])
        if edge[0] not in self.preds[edge[1]]:
            self.optional.add(edge)
            self.preds[edge[1]].append(edge[0])

    def _sorted(self) -> EventGraph:
        repairs: tuple[str, ...] = ()
        begins = [node[0] for node in self.nodes]
        order = _topological(self.preds, begins)
        if order is None and self.optional:
            for cause, effect in self.optional:
                if self.nodes[cause][1] == self.nodes[effect][0]:
                    self.preds[effect].remove(cause)
            repairs = ("causes at one instant ran in a circle: links of no length left out",)
            order = _topological(self.preds, begins)
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
        starts, ends, works, kinds = (pick(column) for column in zip(*self.nodes, strict=True))
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


def _scopes(
    works: Sequence[Work], live: Sequence[int], parents: Sequence[int | None]
) -> tuple[dict[int, int | None], dict[int, int | None], dict[int | None, int | None]]:
    """Where spans are joined, where they fork from, and who stands in for the unfinished.

    ``home``: nearest finished ancestor that lasts at least as long. ``door``: nearest ancestor
    that had begun. ``finished``: the span itself or its nearest finished ancestor. Each follows
    the answers already found, so deep chains of ever later ends or earlier starts stay linear.
    """
    home: dict[int, int | None] = {}
    door: dict[int, int | None] = {}
    finished: dict[int | None, int | None] = {None: None}
    for i in _parents_first(live, parents):
        start, end = works[i].span.start_ns, works[i].end_ns
        at = parents[i]
        while at is not None and not _lasts(works[at].end_ns, end):
            at = home[at]
        home[i] = at
        at = parents[i]
        while at is not None and works[at].span.start_ns > start:
            at = door[at]
        door[i] = at
        finished[i] = finished[parents[i]] if end is None else i
    return home, door, finished


def _lasts(end: int | None, least: int | None) -> bool:
    return end is not None and (least is None or end >= least)


def _parents_first(live: Sequence[int], parents: Sequence[int | None]) -> list[int]:
    children: dict[int | None, list[int]] = {}
    for i in live:
        children.setdefault(parents[i], []).append(i)
    order = list(children.get(None, ()))
    for i in order:  # grows while it is read
        order.extend(children.get(i, ()))
    return order


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
