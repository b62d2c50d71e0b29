"""Which spans are the model calls of a task, where spans of calls contain each other.

Instrumentations sit on top of each other: an agent span with the usage of all its calls, a client
span around the server's, a proxy around two servers. Each call counts once, at the leaf; what only
repeats the time of another span is detail and takes no part in the graph.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.dialects.vocabulary import VOCABULARY
from gatekeeper.core.model_calls import output_tokens
from gatekeeper.core.segment_kinds import MODEL, PHASES, WORK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.dialects.vocabulary import Classified
    from gatekeeper.core.span_forest import Forest
    from gatekeeper.core.traces import Span

__all__ = ["Nesting", "nest"]


@dataclass(frozen=True)
class Nesting:
    """One entry per span.

    ``kinds``: kind of the span, ``other`` for a model span that only contains or repeats calls.
    ``phased``: whether a model span's phases are spans below it. ``in_call``: whether the nearest
    span above that is not plain is a model call or a phase of one. ``detail``: whether it repeats
    another's time, whatever the clocks of the two say. ``lenders``: for a call that does not say
    how many tokens it wrote, or to which model, the spans around or below that tell.
    """

    kinds: tuple[str, ...]
    phased: tuple[bool, ...]
    in_call: tuple[bool, ...]
    detail: tuple[bool, ...]
    lenders: dict[int, int]


def nest(spans: Sequence[Span], forest: Forest, found: Sequence[Classified]) -> Nesting:
    """Settle what every model span is among the others; ``spans`` are in canonical order."""
    kinds = [one.kind for one in found]
    detail = [False] * len(spans)
    servers: dict[int, list[int]] = {}
    stage = _stages(forest, kinds)
    for i, above in enumerate(stage):
        if above is not None and kinds[i] == MODEL:  # a server below a proxy's stage
            kinds[i], detail[i] = "other", True
            servers.setdefault(above, []).append(i)
    calls, phased = _contained(forest, kinds, found)
    containers = {i: calls[i] for i, kind in enumerate(kinds) if kind == MODEL and calls[i]}
    for i in containers:
        kinds[i] = "other"
    _keep_busy(forest, kinds, detail)
    _restated(spans, forest, kinds, detail)
    return Nesting(
        tuple(kinds),
        tuple(phased),
        tuple(_in_call(forest, kinds)),
        tuple(detail),
        _lenders(spans, forest, kinds, servers, containers),
    )


def _stages(forest: Forest, kinds: Sequence[str]) -> list[int | None]:
    """Topmost prefill or decode span, of those without a tool or the like between, above each."""
    above: list[int | None] = [None] * len(kinds)
    for i in forest.top_down:
        parent = forest.parents[i]
        if parent is None:
            continue
        if kinds[parent] in PHASES:
            above[i] = parent if above[parent] is None else above[parent]
        elif kinds[parent] in ("other", MODEL):
            above[i] = above[parent]
    return above


def _contained(
    forest: Forest, kinds: Sequence[str], found: Sequence[Classified]
) -> tuple[list[int], list[bool]]:
    """How many calls each model span contains, and whether prefill or decode spans lie below it.

    A call may start tools while it streams, and a tool may call a model: that is another call, and
    the first is one none the less. Only where no more than a total of tokens made a span look like
    a call are the calls inside its tools its own.
    """
    near, deep, contained = ([0] * len(kinds) for _ in range(3))
    phased = [False] * len(kinds)
    for i in reversed(forest.top_down):
        kind = kinds[i]
        if kind == MODEL:
            contained[i] = near[i] if found[i].told else deep[i]
            if not contained[i]:
                near[i], deep[i] = 1, deep[i] + 1
        parent = forest.parents[i]
        if parent is None:
            continue
        deep[parent] += deep[i]
        if kind not in WORK:
            near[parent] += near[i]
        if kind in PHASES or (phased[i] and kind not in WORK):
            phased[parent] = True
    return contained, phased


def _keep_busy(forest: Forest, kinds: Sequence[str], detail: list[bool]) -> None:
    """Leave spans in the graph that have work of their own below them: it needs a place."""
    busy = [kind != "other" for kind in kinds]
    for i in reversed(forest.top_down):
        parent = forest.parents[i]
        if parent is not None:
            busy[parent] = busy[parent] or busy[i]
        detail[i] = detail[i] and not busy[i]


def _restated(
    spans: Sequence[Span], forest: Forest, kinds: Sequence[str], detail: list[bool]
) -> None:
    """Mark spans that repeat the time of the span above while others there say what it was.

    Left in the graph they would run beside the calls of a sub-agent and hide what those save.
    """
    names = VOCABULARY.restates_parent
    if names.isdisjoint(span.name for span in spans):
        return
    starts: dict[int, list[int]] = {}
    for i, span in enumerate(spans):  # in order of their starts
        parent = forest.parents[i]
        if parent is not None and kinds[i] != "human_wait" and span.name not in names:
            starts.setdefault(parent, []).append(span.start_ns)
    for i, span in enumerate(spans):
        parent = forest.parents[i]
        if span.name in names and parent in starts and not forest.children[i] and span.end_ns:
            others = starts[parent]
            at = bisect_left(others, span.start_ns)
            detail[i] = at < len(others) and others[at] < span.end_ns


def _in_call(forest: Forest, kinds: Sequence[str]) -> list[bool]:
    """Whether the nearest span above that is not plain is a model call or a phase of one."""
    below = [False] * len(kinds)
    for i in forest.top_down:
        parent = forest.parents[i]
        if parent is not None:
            plain = kinds[parent] == "other"
            below[i] = below[parent] if plain else kinds[parent] in (MODEL, *PHASES)
    return below


def _lenders(
    spans: Sequence[Span],
    forest: Forest,
    kinds: Sequence[str],
    servers: Mapping[int, Sequence[int]],
    contained: Mapping[int, int],
) -> dict[int, int]:
    """Which span tells a call's tokens and model where its own does not.

    A span that contains one call alone is about that call; so is the server's span below a proxy's
    stage, of which the one that wrote more decoded.
    """
    lenders: dict[int, int] = {}
    around: list[int | None] = [None] * len(spans)
    for i in forest.top_down if contained or servers else ():
        parent = forest.parents[i]
        box = None if parent is None else around[parent]
        if parent is None or kinds[parent] not in ("other", MODEL) or contained.get(parent, 1) > 1:
            box = None
        elif kinds[parent] == MODEL or (
            parent in contained and output_tokens(spans[parent].attributes) is not None
        ):
            box = parent
        around[i] = box
        if i in servers:
            writer = max(servers[i], key=lambda one: output_tokens(spans[one].attributes) or 0)
            lenders[i if box is None or kinds[box] != MODEL else box] = writer
        elif kinds[i] == MODEL and box is not None:
            lenders[i] = box
    return lenders
