"""From a trace to a task: the span forest with kinds, segments, grade and every repair logged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gatekeeper.core.model_calls import (
    ASSUMED_RATE,
    CallTiming,
    Phase,
    TokenRate,
    output_tokens,
    split,
    timing,
)
from gatekeeper.core.routing import ROUTE_ATTRIBUTE
from gatekeeper.core.span_forest import Forest, absorbed_spans, build_forest, calls_below
from gatekeeper.core.span_kinds import MODEL, WORK, classify
from gatekeeper.core.traces import canonical_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.traces import Span, Trace

__all__ = ["Task", "Work", "build_task", "rate_of", "untrusted_timings"]

_PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class Work:
    """One span of a task.

    ``parent`` is an index into the task, None at a root. ``end_ns`` is None where the end is
    unknown. ``phases`` are the span's own segments, which cover it; empty for a container, whose
    own time shows as lags of kind ``lag_kind``. ``absorbed`` spans are detail inside a span that
    already counts (an HTTP request inside a tool) and take no part in the graph.
    """

    span: Span
    parent: int | None
    kind: str
    end_ns: int | None
    phases: tuple[Phase, ...]
    call: CallTiming | None
    absorbed: bool

    @property
    def lag_kind(self) -> str:
        """Kind under which time inside this span but outside its children is shown."""
        return self.kind if self.kind in WORK and self.kind not in _PHASES else "other"


@dataclass(frozen=True)
class Task:
    """One trace seen as work, in canonical order of its spans.

    ``completeness`` is the share of spans that are there and finished, among those there and
    those that others name as their parent. ``tokens_agree`` is None when no span above the
    calls reports a total.
    """

    task_id: str
    source_format: str
    route: str | None
    works: tuple[Work, ...]
    start_ns: int
    end_ns: int
    completeness: float
    tokens_agree: bool | None
    repairs: tuple[str, ...]

    @property
    def wall_ns(self) -> int:
        """Observed makespan: first start to last known time."""
        return self.end_ns - self.start_ns

    @property
    def calls(self) -> tuple[tuple[int, CallTiming], ...]:
        """Index and timing of every model call: leaves only, so nothing counts twice."""
        return tuple((i, w.call) for i, w in enumerate(self.works) if w.call is not None)


def build_task(
    trace: Trace, *, rates: Mapping[str, TokenRate] | None = None, edge: str = "typical"
) -> Task:
    """Build a task.

    Args:
        trace: the trace.
        rates: time per output token by model, for calls that only count tokens; models without
            one get the assumed rate.
        edge: which end of the rates to use: ``typical``, ``low`` or ``high``.
    """
    repairs = list(trace.repairs)
    spans = tuple(sorted(trace.spans, key=canonical_key))
    ends = [_known_end(span, repairs) for span in spans]
    forest = build_forest(spans, repairs)
    kinds = [classify(span).kind for span in spans]
    models, phased = calls_below(forest, kinds)
    # A model span above model spans is their container: the inner ones are the calls.
    kinds = ["other" if k == MODEL and models[i] else k for i, k in enumerate(kinds)]
    counts = [k in WORK or (k == MODEL and not phased[i]) for i, k in enumerate(kinds)]
    absorbed = absorbed_spans(spans, ends, forest, counts, kinds)
    inside_call = _below_a_call(forest, kinds)
    works = []
    for i, span in enumerate(spans):
        kind, end = kinds[i], ends[i]
        call: CallTiming | None = None
        phases: tuple[Phase, ...] = ()
        if kind == MODEL and phased[i]:
            call = CallTiming("A", (), output_tokens(span.attributes))  # phases are spans below
        elif kind == MODEL:
            call = timing(replace(span, end_ns=end))
            repairs.extend(call.problems)
            rate = rate_of(call, rates or {})
            phases = split(replace(span, end_ns=end), call, rate.at(edge))
        elif kind in _PHASES:
            alone = not inside_call[i]
            call = CallTiming("A", (), output_tokens(span.attributes)) if alone else None
            phases = _whole(span, kind, end)
        elif all(absorbed[c] for c in forest.children[i]):
            phases = _whole(span, kind, end)
        works.append(Work(span, forest.parents[i], kind, end, phases, call, absorbed[i]))
    known = [s.start_ns for s in spans] + [e for e in ends if e is not None]
    finished = sum(e is not None for e in ends)
    return Task(
        task_id=trace.trace_id,
        source_format=trace.source_format,
        route=_route(spans),
        works=tuple(works),
        start_ns=min(known),
        end_ns=max(known),
        completeness=finished / (len(spans) + forest.missing),
        tokens_agree=_tokens_agree(works, forest),
        repairs=tuple(_summarise(repairs)),
    )


def rate_of(call: CallTiming, rates: Mapping[str, TokenRate]) -> TokenRate:
    """Time per output token for a call: its model's, else the assumed one."""
    return rates.get(call.model or "", ASSUMED_RATE)


def untrusted_timings(task: Task) -> str | None:
    """Say why a task's times cannot be believed, or None.

    An exporter that closes every span when it flushes gives spread starts and one common end.
    Nested spans do end together, so only leaves, and model calls on their own, are looked at:
    at least four of them (three for calls), starts spread over a fifth of the wall, nine tenths of
    the ends within a thousandth of the wall of the last.
    """
    parents = {w.parent for w in task.works}
    leaves = [w for i, w in enumerate(task.works) if i not in parents]
    calls = [w for w in task.works if w.call is not None]
    for what, group, least in (("leaf spans", leaves, 4), ("model calls", calls, 3)):
        ends = [(w.end_ns, w.span.start_ns) for w in group if w.end_ns is not None]
        if len(ends) < least or task.wall_ns == 0:
            continue
        last = max(e for e, _ in ends)
        flushed = [start for end, start in ends if (last - end) * 1000 <= task.wall_ns]
        spread = max(flushed) - min(flushed)
        if len(flushed) * 10 >= len(ends) * 9 and spread * 5 >= task.wall_ns:
            total = sum(w.end_ns - w.span.start_ns for w in calls if w.end_ns is not None) / 1e9
            return (
                f"timings untrusted: {len(flushed)} of {len(ends)} {what} end at one moment, as "
                f"if closed by a flush; {total:.1f} s of model spans in a "
                f"{task.wall_ns / 1e9:.1f} s wall; not priced"
            )
    return None


def _known_end(span: Span, repairs: list[str]) -> int | None:
    if span.end_ns is None:
        repairs.append("unfinished span: counts as a moment, neither zero long nor until now")
        return None
    if span.end_ns < span.start_ns:
        repairs.append("span ends before it starts: its end is unknown")
        return None
    return span.end_ns


def _below_a_call(forest: Forest, kinds: Sequence[str]) -> list[bool]:
    """Whether the nearest span above that is not plain is a model call or a phase of one."""
    below = [False] * len(kinds)
    for i in forest.top_down:
        parent = forest.parents[i]
        if parent is not None:
            plain = kinds[parent] == "other"
            below[i] = below[parent] if plain else kinds[parent] in (MODEL, *_PHASES)
    return below


def _whole(span: Span, kind: str, end: int | None) -> tuple[Phase, ...]:
    return () if end is None else (Phase(kind, span.start_ns, end),)


def _route(spans: Sequence[Span]) -> str | None:
    for span in spans:
        route = span.attributes.get(ROUTE_ATTRIBUTE)
        if isinstance(route, str) and route:
            return route
    return None


def _tokens_agree(works: Sequence[Work], forest: Forest) -> bool | None:
    """Whether totals on spans above the calls equal the calls' sum; None without such totals."""
    sums = [0] * len(works)
    known = [True] * len(works)
    holds = [False] * len(works)
    for i in reversed(forest.top_down):
        call = works[i].call
        if call is not None:
            sums[i] += call.output_tokens or 0
            known[i] = known[i] and call.output_tokens is not None
            holds[i] = True
        parent = forest.parents[i]
        if parent is not None and holds[i]:
            sums[parent] += sums[i]
            known[parent] = known[parent] and known[i]
            holds[parent] = True
    verdicts = [
        total == sums[i]
        for i, work in enumerate(works)
        if work.call is None and holds[i] and known[i]
        if (total := output_tokens(work.span.attributes)) is not None
    ]
    return all(verdicts) if verdicts else None


def _summarise(repairs: Sequence[str]) -> list[str]:
    """Say each repair once, with how often it was needed."""
    counts = Counter(repairs)
    return [note if n == 1 else f"{note} ({n} times)" for note, n in counts.items()]
