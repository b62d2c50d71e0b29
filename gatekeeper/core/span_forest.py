"""The forest that parent ids make of a trace's spans: orphans, loops and roots settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.segment_kinds import MODEL, WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.traces import Span

__all__ = ["Forest", "absorbed_spans", "build_forest"]

_NOT_PLAIN = WORK | {MODEL}


@dataclass(frozen=True)
class Forest:
    """Indices into the spans it was built from.

    ``top_down`` lists every span after its parent, so that all walks are loops and a tree of
    any depth fits. ``missing`` counts the distinct parents that were named but never exported.
    """

    parents: tuple[int | None, ...]
    children: tuple[tuple[int, ...], ...]
    top_down: tuple[int, ...]
    missing: int


def build_forest(spans: Sequence[Span], repairs: list[str]) -> Forest:
    """Resolve parent ids; every decision taken is appended to ``repairs``."""
    index = {span.span_id: i for i, span in enumerate(spans)}
    parents: list[int | None] = []
    missing: set[str] = set()
    for i, span in enumerate(spans):
        parent = index.get(span.parent_id) if span.parent_id else None
        if span.parent_id and parent is None:
            missing.add(span.parent_id)
            repairs.append("orphan: its parent was never exported, treated as a root")
        if parent == i:
            repairs.append("span is its own parent: treated as a root")
            parent = None
        parents.append(parent)
    children, roots, top_down = _walk(parents)
    if len(top_down) < len(parents):  # what no root leads to runs in loops
        _cut_loops(parents, repairs)
        children, roots, top_down = _walk(parents)
    if roots > 1:
        repairs.append(f"{roots} roots in one trace: treated as siblings")
    return Forest(
        tuple(parents),
        tuple([tuple(children[i]) if i in children else () for i in range(len(parents))]),
        tuple(top_down),
        len(missing),
    )


def _walk(parents: Sequence[int | None]) -> tuple[dict[int, list[int]], int, list[int]]:
    """Children of every span that has any, how many roots there are, and all below them in order."""
    children: dict[int, list[int]] = {}
    order = []
    for i, parent in enumerate(parents):
        if parent is None:
            order.append(i)
        else:
            children.setdefault(parent, []).append(i)
    roots = len(order)
    for i in order:  # grows while it is read: breadth first without recursion
        if i in children:
            order += children[i]
    return children, roots, order


def _cut_loops(parents: list[int | None], repairs: list[str]) -> None:
    done = [False] * len(parents)
    for first in range(len(parents)):
        trail: dict[int, None] = {}
        at: int | None = first
        while at is not None and not done[at] and at not in trail:
            trail[at] = None
            at = parents[at]
        if at is not None and at in trail:
            loop = list(trail)[list(trail).index(at) :]
            parents[min(loop)] = None
            repairs.append("loop of parents: its earliest span is treated as a root")
        for i in trail:
            done[i] = True


def absorbed_spans(
    spans: Sequence[Span],
    ends: Sequence[int | None],
    forest: Forest,
    counts: Sequence[bool],
    kinds: Sequence[str],
) -> list[bool]:
    """Which spans are mere detail of one that already counts: plain, finished, inside it.

    An HTTP request inside a tool, or inside a model call, repeats time that its parent's own
    segments cover; as a node of its own it would run beside them and hide what they save.

    Args:
        spans: the forest's spans.
        ends: end of each in nanoseconds, None where unknown.
        forest: their forest.
        counts: whether a span's own segments cover it, children or not.
        kinds: kind of each span.
    """
    plain = [
        kind not in _NOT_PLAIN and end is not None for kind, end in zip(kinds, ends, strict=True)
    ]
    low = [span.start_ns for span in spans]
    high = [span.start_ns if end is None else end for span, end in zip(spans, ends, strict=True)]
    for i in reversed(forest.top_down):
        parent = forest.parents[i]
        if parent is not None:
            plain[parent] = plain[parent] and plain[i]
            low[parent] = min(low[parent], low[i])
            high[parent] = max(high[parent], high[i])
    absorbed = [False] * len(spans)
    for i in forest.top_down:
        parent = forest.parents[i]
        if parent is None:
            continue
        end = ends[parent]
        inside = end is not None and spans[parent].start_ns <= low[i] and high[i] <= end
        absorbed[i] = absorbed[parent] or (counts[parent] and plain[i] and inside)
    return absorbed
