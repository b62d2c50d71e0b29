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
from collections import deque
from dataclasses import dataclass
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


class _Builder:
    """Collects nodes and edges in canonical order, then sorts them topologically."""

    def __init__(self, task: Task, *, happens_before: bool) -> None:
        self.works = task.works
        self.zero = task.start_ns
        self.happens_before = happens_before
        self.live = [i for i, work in enumerate(self.works) if not work.absorbed]
        self.start: list[int] = []
        self.end: list[int] = []
        self.kind: list[str | None] = []
        self.lag_kind: list[str] = []
        self.work: list[int | None] = []
        self.preds: list[list[int]] = []
        self.optional: set[tuple[int, int]] = set()
        self.open: dict[int, int] = {}
        self.close: dict[int, int] = {}
        self.pieces: dict[int, tuple[list[int], list[int]]] = {}
        # Completed so far, per scope: (end, index) of each member and its node.
        self.done: dict[int | None, tuple[list[tuple[int, int]], list[int]]] = {}
        self.home, self.door, self.finished = _scopes(self.works, self.live)
        self.source = self._node(task.start_ns, task.start_ns, None)
        self.finish = task.end_ns

    def build(self) -> EventGraph:
        causes = causes_of(self.works)
        self._spans(causes)
        self._completions()
        for i in self.live:
            self.preds[self.open[i]].extend(self._before(i))
            if i in self.close:
                self._join(self.close[i], i, last=self._last_of(i))
        for cause, effect in causes:
            self._cause(cause, effect)
        sink = self._node(self.finish, self.finish, None)
        self._join(sink, None, last=self.source)
        self.preds[sink].extend(self.open[i] for i in self.live if i not in self.close)
        return self._sorted()

    def _node(self, start: int, end: int, work: int | None, kind: str | None = None) -> int:
        self.start.append(start)
        self.end.append(end)
        self.work.append(work)
        self.kind.append(kind)
        self.lag_kind.append("other")
        self.preds.append([])
        return len(self.start) - 1

    def _spans(self, causes: Iterable[tuple[int, int]]) -> None:
        """Open, pieces and close of every span, cut where something starts out of its middle."""
        cuts: dict[int, set[int]] = {i: set() for i in self.live}
        for i in self.live:
            parent = self.works[i].parent
            if parent is not None:
                cuts[parent].add(self.works[i].span.start_ns)
        for cause, effect in causes:
            cuts[cause].add(self.works[effect].span.start_ns)
        for i in self.live:
            work = self.works[i]
            at = self.open[i] = self._node(work.span.start_ns, work.span.start_ns, i)
            ends: list[int] = []
            nodes: list[int] = []
            times = sorted(cuts[i]) if work.phases else []
            for phase in work.phases:
                inner = times[
                    bisect_right(times, phase.start_ns) : bisect_left(times, phase.end_ns)
                ]
                begin = phase.start_ns
                for stop in (*inner, phase.end_ns):
                    node = self._node(begin, stop, i, phase.kind)
                    self.preds[node].append(at)
                    at, begin = node, stop
                    ends.append(stop)
                    nodes.append(node)
            self.pieces[i] = (ends, nodes)
            if work.end_ns is not None:
                self.close[i] = self._node(work.end_ns, work.end_ns, i)
                self.lag_kind[self.close[i]] = work.lag_kind

    def _completions(self) -> None:
        """Chain the closes of each scope in order of their ends."""
        members: dict[int | None, list[tuple[int, int]]] = {}
        for i, scope in self.home.items():
            end = self.works[i].end_ns
            if end is not None:
                members.setdefault(scope, []).append((end, i))
        for scope, keys in members.items():
            keys.sort()
            nodes = [self.close[keys[0][1]]]
            for end, i in keys[1:]:
                node = self._node(end, end, scope)
                self.preds[node].extend((nodes[-1], self.close[i]))
                nodes.append(node)
            self.done[scope] = (keys, nodes)

    def _before(self, i: int) -> Iterable[int]:
        """Predecessors of a span's open: the fork, and what its siblings had completed."""
        work = self.works[i]
        start = work.span.start_ns
        scope = self.door[i]
        if scope is None:
            yield self.source
        else:
            end = self.works[scope].end_ns
            outlives = end is not None and (
                start > end if work.end_ns is None else work.end_ns > end
            )
            self.lag_kind[self.open[i]] = self.works[scope].lag_kind
            yield self._running(scope, start, may_close=outlives)
        if not self.happens_before:
            return
        for level in {self.finished[work.parent], self.finished[scope]}:
            keys, nodes = self.done.get(level, ([], []))
            place = bisect_left(keys, (start, i))
            if place:
                yield nodes[place - 1]

    def _running(self, i: int, time: int, *, may_close: bool) -> int:
        """Latest node of span ``i`` that had ended at ``time``."""
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
        if self.works[cause].span.start_ns > start or self.works[effect].parent == cause:
            return
        edge = (self._running(cause, start, may_close=True), self.open[effect])
        if edge[0] not in self.preds[edge[1]]:
            self.optional.add(edge)
            self.preds[edge[1]].append(edge[0])

    def _sorted(self) -> EventGraph:
        repairs: tuple[str, ...] = ()
        order = _topological(self.preds)
        if order is None and self.optional:
            for cause, effect in self.optional:
                if self.end[cause] == self.start[effect]:
                    self.preds[effect].remove(cause)
            repairs = ("causes at one instant ran in a circle: links of no length left out",)
            order = _topological(self.preds)
        if order is None:
            raise TraceError(
                "its spans wait for each other in a circle",
                field="traceId",
                value=self.works[0].span.trace_id,
                remedy="report this trace: no real clock produces it",
            )
        place = {node: i for i, node in enumerate(order)}
        preds = [tuple(sorted({place[p] for p in self.preds[node]})) for node in order]
        ends = [self.end[node] for node in order]
        starts = [self.start[node] for node in order]
        lags = [
            start - max((ends[p] for p in before), default=self.zero)
            for start, before in zip(starts, preds, strict=True)
        ]
        kinds = tuple(self.kind[node] for node in order)
        works = tuple(self.work[node] for node in order)
        return EventGraph(
            predecessors=tuple(preds),
            start_ns=tuple(start - self.zero for start in starts),
            duration_ns=tuple(end - start for start, end in zip(starts, ends, strict=True)),
            lag_ns=tuple(lags),
            kind=kinds,
            lag_kind=tuple(self.lag_kind[node] for node in order),
            work=works,
            in_call=tuple(
                kind is not None
                and work is not None
                and self.works[work].kind in (MODEL, "prefill", "decode")
                for kind, work in zip(kinds, works, strict=True)
            ),
            repairs=repairs,
        )


def _scopes(
    works: Sequence[Work], live: Sequence[int]
) -> tuple[dict[int, int | None], dict[int, int | None], dict[int | None, int | None]]:
    """Where spans are joined, where they fork from, and who stands in for the unfinished.

    ``home``: nearest finished ancestor that lasts at least as long. ``door``: nearest ancestor
    that had begun. ``finished``: the span itself or its nearest finished ancestor. Each follows
    the answers already found, so deep chains of ever later ends or earlier starts stay linear.
    """
    home: dict[int, int | None] = {}
    door: dict[int, int | None] = {}
    finished: dict[int | None, int | None] = {None: None}
    for i in _parents_first(works, live):
        start, end = works[i].span.start_ns, works[i].end_ns
        at = works[i].parent
        while at is not None and not _lasts(works[at].end_ns, end):
            at = home[at]
        home[i] = at
        at = works[i].parent
        while at is not None and works[at].span.start_ns > start:
            at = door[at]
        door[i] = at
        finished[i] = finished[works[i].parent] if end is None else i
    return home, door, finished


def _lasts(end: int | None, least: int | None) -> bool:
    return end is not None and (least is None or end >= least)


def _parents_first(works: Sequence[Work], live: Sequence[int]) -> list[int]:
    children: dict[int | None, list[int]] = {}
    for i in live:
        children.setdefault(works[i].parent, []).append(i)
    order = list(children.get(None, ()))
    for i in order:  # grows while it is read
        order.extend(children.get(i, ()))
    return order


def _topological(preds: Sequence[Sequence[int]]) -> list[int] | None:
    """Topological order of the nodes, or None where they form a circle."""
    followers: list[list[int]] = [[] for _ in preds]
    waiting = [len(before) for before in preds]
    for node, before in enumerate(preds):
        for p in before:
            followers[p].append(node)
    ready = deque(node for node, count in enumerate(waiting) if count == 0)
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for follower in followers[node]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return order if len(order) == len(preds) else None
