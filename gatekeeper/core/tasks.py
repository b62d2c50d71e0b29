"""From a trace to a task: the span forest with kinds, segments, grade and every repair logged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gatekeeper.core.call_nesting import Nesting, nest
from gatekeeper.core.dialects.vocabulary import VOCABULARY
from gatekeeper.core.human_wait import APART, MARK
from gatekeeper.core.model_calls import (
    CallTiming,
    Phase,
    TokenRates,
    output_tokens,
    phased_call,
    split,
    timing,
)
from gatekeeper.core.routing import ROUTE_ATTRIBUTE
from gatekeeper.core.segment_kinds import MODEL, PHASES, WORK
from gatekeeper.core.span_clocks import align
from gatekeeper.core.span_forest import Forest, absorbed_spans, build_forest
from gatekeeper.core.span_kinds import classify
from gatekeeper.core.traces import canonical_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.traces import Span, Trace

__all__ = ["Task", "Work", "build_task", "untrusted_timings", "with_rates"]

_NO_RATES = TokenRates()


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
        return self.kind if self.kind in WORK and self.kind not in PHASES else "other"


@dataclass(frozen=True)
class Task:
    """One trace seen as work, in canonical order of its spans.

    ``completeness`` is the share of spans that are there and finished, among those there and
    those that others name as their parent. ``tokens_agree`` is None when no span above the
    calls reports a total. ``waits_apart`` is True where the source tells waiting for a
    person from work. ``clock_problem`` says why times of different machines cannot be compared.
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
    waits_apart: bool = False
    clock_problem: str | None = None

    @property
    def wall_ns(self) -> int:
        """Observed makespan: first start to last known time."""
        return self.end_ns - self.start_ns

    @property
    def calls(self) -> tuple[tuple[int, CallTiming], ...]:
        """Index and timing of every model call: leaves only, so nothing counts twice."""
        return tuple((i, w.call) for i, w in enumerate(self.works) if w.call is not None)


def build_task(trace: Trace, *, rates: TokenRates | None = None, edge: str = "typical") -> Task:
    """Build a task.

    Args:
        trace: the trace.
        rates: time per output token by route and model, for calls that only count tokens; where
            there is none the assumed rate counts.
        edge: which end of the rates to use: ``typical``, ``low`` or ``high``.
    """
    aligned = align(sorted(trace.spans, key=canonical_key))
    repairs = [*trace.repairs, *aligned.repairs]
    spans = tuple(sorted(aligned.spans, key=canonical_key) if aligned.repairs else aligned.spans)
    ends = [_known_end(span, repairs) for span in spans]
    forest = build_forest(spans, repairs)
    found = [classify(span) for span in spans]
    nested = nest(spans, forest, found)
    absorbed = _absorbed(spans, ends, forest, nested)
    builder = _Builder(
        tuple(
            span if span.end_ns == end else replace(span, end_ns=end)
            for span, end in zip(spans, ends, strict=True)
        ),
        forest,
        nested,
        absorbed,
        rates or _NO_RATES,
        edge,
        _routes(trace.trace_id, spans, forest, rates or _NO_RATES),
        repairs,
    )
    works = tuple(
        Work(span, forest.parents[i], nested.kinds[i], ends[i], *builder.work(i), absorbed[i])
        for i, span in enumerate(spans)
    )
    known = [s.start_ns for s in spans] + [e for e in ends if e is not None]
    finished = sum(e is not None for e in ends)
    return Task(
        task_id=trace.trace_id,
        source_format=trace.source_format,
        route=_route(spans),
        works=works,
        start_ns=min(known),
        end_ns=max(known),
        completeness=finished / (len(spans) + forest.missing),
        tokens_agree=_tokens_agree(works, forest),
        repairs=tuple(_summarise(repairs)),
        waits_apart=any(one.waits_apart or one.kind == "human_wait" for one in found)
        or any(span.attributes.get(MARK) == APART for span in spans),
        clock_problem=aligned.problem,
    )


def with_rates(task: Task, rates: TokenRates, *, edge: str = "typical") -> Task:
    """The same task at other rates: what ``build_task`` makes of its trace with these arguments.

    Args:
        task: a task that was built without rates, or whose calls have the routes that these name.
        rates: as for ``build_task``.
        edge: as for ``build_task``.
    """
    works = list(task.works)
    for i, call in task.calls:
        span, phases = works[i].span, works[i].phases
        timed = _routed(call, rates.routes.get((task.task_id, span.span_id)))
        if call.grade == "C":
            known = (
                span if span.end_ns == works[i].end_ns else replace(span, end_ns=works[i].end_ns)
            )
            phases = split(known, timed, rates.of(timed).at(edge))
        if timed is not call or phases is not works[i].phases:
            works[i] = replace(works[i], call=timed, phases=phases)
    return replace(task, works=tuple(works))


def _routed(call: CallTiming, route: str | None) -> CallTiming:
    return call if route is None else replace(call, route=route)


@dataclass(frozen=True)
class _Builder:
    """Segments and timing of each span, once its place among the others is settled."""

    spans: Sequence[Span]
    forest: Forest
    nested: Nesting
    absorbed: Sequence[bool]
    rates: TokenRates
    edge: str
    routes: Sequence[str | None] | None
    repairs: list[str]

    @cached_property
    def prefilled(self) -> dict[int, int]:
        """End of the last prefill directly below each span."""
        ends: dict[int, int] = {}
        for i, kind in enumerate(self.nested.kinds):
            parent, end = self.forest.parents[i], self.spans[i].end_ns
            if kind == "prefill" and parent is not None and end is not None:
                ends[parent] = max(end, ends.get(parent, end))
        return ends

    def work(self, i: int) -> tuple[tuple[Phase, ...], CallTiming | None]:
        """Own segments of a span, and its timing where it is a call."""
        span, kind = self.spans[i], self.nested.kinds[i]
        if kind == MODEL and not self.nested.phased[i]:
            call = self._call(i, timing(span, self._requests(i), self._lender(i)))
            self.repairs.extend(call.problems)
            return split(span, call, self.rates.of(call).at(self.edge)), call
        if kind == MODEL:
            return (), self._call(i, phased_call(span, self._lender(i)))
        if kind in PHASES:
            alone = not self.nested.in_call[i]
            stage = self._call(i, phased_call(span, self._lender(i))) if alone else None
            return self._stage(i), stage
        if all(self.absorbed[c] for c in self.forest.children[i]):
            return _whole(span, kind), None
        return (), None

    def _call(self, i: int, call: CallTiming) -> CallTiming:
        return _routed(call, None if self.routes is None else self.routes[i])

    def _lender(self, i: int) -> Span | None:
        lender = self.nested.lenders.get(i)
        return None if lender is None else self.spans[lender]

    def _requests(self, i: int) -> tuple[Span, ...]:
        """Plain spans below a call, as far as nothing else lies between."""
        below = list(self.forest.children[i])
        if not below:
            return ()
        plain = []
        for c in below:  # grows while it is read
            if self.nested.kinds[c] == "other":
                plain.append(self.spans[c])
                below.extend(self.forest.children[c])
        return tuple(plain)

    def _stage(self, i: int) -> tuple[Phase, ...]:
        """A prefill or decode span; one that was sent off together with its prefill waits for it."""
        span, kind = self.spans[i], self.nested.kinds[i]
        parent, end = self.forest.parents[i], span.end_ns
        if end is None or kind != "decode" or parent is None:
            return _whole(span, kind)
        if not any(span.attributes.get(key) for key in VOCABULARY.waits_for_prefill):
            return _whole(span, kind)
        begin = min(max(span.start_ns, self.prefilled.get(parent, 0)), end)
        waiting = Phase("queue", span.start_ns, begin)
        decoding = Phase(kind, begin, end)
        return tuple(p for p in (waiting, decoding) if p.end_ns > p.start_ns)


def _absorbed(
    spans: Sequence[Span], ends: Sequence[int | None], forest: Forest, nested: Nesting
) -> list[bool]:
    """Spans that take no part in the graph: mere detail, by their place or by their dialect."""
    kinds, phased = nested.kinds, nested.phased
    counts = [k in WORK or (k == MODEL and not phased[i]) for i, k in enumerate(kinds)]
    absorbed = absorbed_spans(spans, ends, forest, counts, kinds)
    if any(nested.detail):
        for i in forest.top_down:
            parent = forest.parents[i]
            inherits = parent is not None and absorbed[parent] and kinds[i] == "other"
            absorbed[i] = absorbed[i] or nested.detail[i] or inherits
    return absorbed


def _routes(
    trace_id: str, spans: Sequence[Span], forest: Forest, rates: TokenRates
) -> list[str | None] | None:
    """Route of each span: by rule, else named by itself or the nearest span above; None without."""
    if not rates.routes and not any(ROUTE_ATTRIBUTE in span.attributes for span in spans):
        return None
    routes: list[str | None] = [None] * len(spans)
    for i in forest.top_down:
        parent = forest.parents[i]
        named = spans[i].attributes.get(ROUTE_ATTRIBUTE)
        above = None if parent is None else routes[parent]
        routes[i] = str(named) if named else above
    if rates.routes:
        ruled = (rates.routes.get((trace_id, span.span_id)) for span in spans)
        routes = [rule or route for rule, route in zip(ruled, routes, strict=True)]
    return routes


def untrusted_timings(task: Task) -> str | None:
    """Say why a task's times cannot be believed, or None: clocks that no shift makes agree, or a flush.

    An exporter that closes every span when it flushes gives spread starts and one common end.
    Nested spans do end together, so only leaves, and model calls on their own, are looked at:
    at least four of them (three for calls), starts spread over a fifth of the wall, nine tenths of
    the ends within a thousandth of the wall of the last.
    """
    if task.clock_problem is not None:
        return f"timings untrusted: {task.clock_problem}"
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


def _whole(span: Span, kind: str) -> tuple[Phase, ...]:
    return () if span.end_ns is None else (Phase(kind, span.start_ns, span.end_ns),)


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
