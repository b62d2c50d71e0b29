"""Clocks of different machines in one trace: told apart, compared, and set right where they disagree.

A span carries the times of its own machine. Parents and children of two machines show how far their
clocks may be apart: a child cannot start before the span that caused it, and what a caller waits for
cannot end after the call. Of a pair (p on clock a, c on clock b), with s what is added to a clock,

    s_b − s_a >= start(p) − start(c)        always
    s_b − s_a <= end(p) − end(c)            where p waits for c, and c is not the longer one

each a millisecond wider, by which exporters round. All pairs together bound every difference, as the
four times of an NTP exchange do. While no shift at all fits, nothing is known against the clocks and
nothing is moved. Else the first root's clock stays, and each other clock keeps its own time or that of
its caller where it can; where it cannot, the middle of what is possible is the least that can be
wrong. The spans of a clock are moved as a whole: lengths, and everything of one machine, stay as
they are. Where no shifts fit, a clock drifted or was set meanwhile, or parents are wrong: then nothing
is moved and the task is not priced. The spans as received stay as they are in any case.
Source of the interval: D. Mills et al., RFC 5905, section 8, on-wire protocol.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gatekeeper.core.dialects.vocabulary import VOCABULARY
from gatekeeper.core.segment_kinds import MODEL, PHASES
from gatekeeper.core.span_forest import build_forest
from gatekeeper.core.span_kinds import classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.traces import Span

__all__ = ["MOST_CLOCKS", "RESOLUTION_NS", "SPAN_KIND", "Aligned", "align", "clock_of"]

RESOLUTION_NS = 10**6
"""Differences up to this are what exporters round times by, and no sign of a clock."""

MOST_CLOCKS = 32
"""Clocks of one task that are set right; of more it is only seen whether they disagree."""

SPAN_KIND = "span.kind"
"""Span attribute: ``client`` waits for the ``server`` below it."""

_MACHINES = tuple(
    f"resource.{name}" for name in ("host.id", "host.name", "k8s.node.name", "hostname")
)
_NONE = float("inf")
_MILLISECOND = 10**6


@dataclass(frozen=True)
class Aligned:
    """Spans on one clock, in no particular order.

    ``repairs`` says which clocks were moved; ``problem`` why the times of some cannot be used.
    """

    spans: Sequence[Span]
    repairs: tuple[str, ...] = ()
    problem: str | None = None


@dataclass
class _Difference:
    """Bounds of s_b − s_a; ``inner`` are those that hold if everything that fits in lay inside."""

    low: float = -_NONE
    high: float = _NONE
    inner_low: float = -_NONE
    inner_high: float = _NONE

    def met(self, low: float, high: float, inner_low: float, inner_high: float) -> None:
        """Narrow it by one pair of spans."""
        self.low, self.high = max(self.low, low), min(self.high, high)
        self.inner_low = max(self.inner_low, inner_low)
        self.inner_high = min(self.inner_high, inner_high)


_Differences = dict[str, dict[str, _Difference]]
_Ends = dict[str, tuple[float, float]]


def clock_of(span: Span) -> str | None:
    """Name of the clock that a span's times come from: its machine's, else its service's."""
    for key in _MACHINES:
        name = span.attributes.get(key)
        if isinstance(name, str) and name:
            return f"host {name}"
    return None if span.service is None else f"service {span.service}"


def align(spans: Sequence[Span]) -> Aligned:
    """Put the spans of one trace on the clock of its first root.

    Args:
        spans: every span id once, in canonical order.
    """
    clocks = [clock_of(span) for span in spans]
    if len(set(clocks) - {None}) <= 1:
        return Aligned(spans)
    known, found = _compared(spans, clocks)
    pairs = [(a, b, one) for a, others in found.items() for b, one in others.items()]
    if all(one.low <= 0 <= one.high for _, _, one in pairs):
        return Aligned(spans)
    shifts = _shifts(known, found) if len(known) <= MOST_CLOCKS else None
    if shifts is None:
        widest = max(pairs, key=lambda pair: pair[2].low)
        return Aligned(spans, problem=_contradiction(*widest, len(known)))
    counts = Counter(clocks)
    return Aligned(
        [
            _shifted(span, shifts[clock]) if clock is not None and shifts[clock] else span
            for span, clock in zip(spans, clocks, strict=True)
        ],
        tuple(_moved(clock, by, counts[clock]) for clock, by in shifts.items() if by),
    )


def _compared(
    spans: Sequence[Span], clocks: Sequence[str | None]
) -> tuple[list[str], _Differences]:
    """All clocks, roots' first, and of each two that called each other what their spans show."""
    roots: dict[str, None] = {}
    others: dict[str, None] = {}
    found: _Differences = {}
    for i, parent in enumerate(build_forest(spans, []).parents):
        below = clocks[i]
        if below is None:
            continue
        (roots if parent is None else others)[below] = None
        above = None if parent is None else clocks[parent]
        if parent is not None and above is not None and above != below:
            low, high, inner = _bounds(spans[parent], spans[i])
            there = found.setdefault(above, {}).setdefault(below, _Difference())
            there.met(low, high, low, inner)
            back = found.setdefault(below, {}).setdefault(above, _Difference())
            back.met(-high, -low, -inner, -low)
    return list(roots | others), found


def _bounds(parent: Span, child: Span) -> tuple[float, float, float]:
    """Least and largest difference that a pair allows, and the largest with the child inside."""
    low = parent.start_ns - child.start_ns - RESOLUTION_NS
    if parent.end_ns is None or child.end_ns is None or child.end_ns < child.start_ns:
        return low, _NONE, _NONE
    if child.end_ns - child.start_ns > parent.end_ns - parent.start_ns:
        return low, _NONE, _NONE
    inner = parent.end_ns - child.end_ns + RESOLUTION_NS
    return low, inner if _waits(parent, child) else _NONE, inner


def _waits(parent: Span, child: Span) -> bool:
    """Whether a span lasts until what it called on another machine has answered.

    A model call waits for its server, but not for the tools that it starts while it streams.
    """
    if [one.attributes.get(SPAN_KIND) for one in (parent, child)] == ["client", "server"]:
        return True
    above = classify(parent)
    return above.kind == MODEL and above.told and classify(child).kind in (MODEL, "queue", *PHASES)


def _shifts(known: Iterable[str], found: _Differences) -> dict[str, int] | None:
    """What to add to each clock; None where no shifts fit."""
    shifts: dict[str, int] = {}
    for reference in known:
        if reference in shifts:
            continue
        shifts[reference] = 0
        placed = [reference]
        for caller in placed:  # grows while it is read
            for clock in found.get(caller, ()):
                if clock not in shifts:
                    ends = _possible(found, shifts)
                    if ends is None:
                        return None
                    shifts[clock] = _chosen(clock, caller, shifts, found, ends[clock])
                    placed.append(clock)
    return shifts


def _possible(found: _Differences, shifts: Mapping[str, int]) -> _Ends | None:
    """Bounds of every clock's shift that follow from those fixed; None where they contradict.

    A shortest path over differences: each bound is narrowed until none can be (Bellman and Ford).
    """
    ends: _Ends = {clock: (by, by) for clock, by in shifts.items()}
    rounds: Counter[str] = Counter()
    waiting = dict.fromkeys(ends)
    while waiting:
        at = next(iter(waiting))
        del waiting[at]
        rounds[at] += 1
        if rounds[at] > len(found):
            return None
        low, high = ends[at]
        for clock, one in found.get(at, {}).items():
            known = ends.get(clock, (-_NONE, _NONE))
            narrow = (max(known[0], low + one.low), min(known[1], high + one.high))
            if narrow[0] > narrow[1]:
                return None
            if narrow != known:
                ends[clock] = narrow
                waiting[clock] = None
    return ends


def _chosen(
    clock: str,
    caller: str,
    shifts: Mapping[str, int],
    found: _Differences,
    ends: tuple[float, float],
) -> int:
    """A clock's shift among those that are possible.

    Whether a caller waited is not always known; where all can lie inside, they most likely do.
    """
    low, high = ends
    near = [(found[at][clock], by) for at, by in shifts.items() if clock in found.get(at, {})]
    inner = (
        max([low, *(by + one.inner_low for one, by in near)]),
        min([high, *(by + one.inner_high for one, by in near)]),
    )
    for least, most in (inner, ends):
        for kept in (0, shifts[caller]):
            if least <= kept <= most:
                return kept
    if inner[0] <= inner[1]:
        low, high = inner
    # Of one bound alone, the bound itself, without the millisecond that it was widened by.
    if high == _NONE:
        return int(low) + RESOLUTION_NS
    if low == -_NONE:
        return int(high) - RESOLUTION_NS
    return int(low + high) // 2


def _shifted(span: Span, by: int) -> Span:
    """A span with all its times moved."""
    attributes = span.attributes
    moments = [
        key
        for key in VOCABULARY.first_token_times
        if isinstance(attributes.get(key), int) and not isinstance(attributes[key], bool)
    ]
    if moments:
        attributes = {**attributes, **{key: attributes[key] + by for key in moments}}
    return replace(
        span,
        start_ns=span.start_ns + by,
        end_ns=None if span.end_ns is None else span.end_ns + by,
        attributes=attributes,
        events=tuple(replace(event, time_ns=event.time_ns + by) for event in span.events),
    )


def _moved(clock: str, by: int, spans: int) -> str:
    return (
        f"clock of {clock} is {'behind' if by > 0 else 'ahead'}: its {spans} "
        f"span{'' if spans == 1 else 's'} moved by {by / _MILLISECOND:+.3f} ms"
    )


def _contradiction(above: str, below: str, one: _Difference, clocks: int) -> str:
    if clocks > MOST_CLOCKS:
        why = f"more than {MOST_CLOCKS} clocks are not set right"
    else:
        why = "no shift of whole clocks fits all spans"
    return (
        f"clocks of {above} and {below} are at least {abs(one.low) / _MILLISECOND:.3f} ms apart, and "
        f"{why}; not moved, not priced"
    )
