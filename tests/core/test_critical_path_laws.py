"""What must hold for every span forest, however broken: exact, against a list of all paths."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from path_enumerator import Bar, Enumerator
from random_traces import forests, tangles
from span_builders import span, trace

from gatekeeper.core.critical_path import critical_path, makespan, saving, stretch
from gatekeeper.core.event_graph import build_graph
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.tasks import Task, build_task

factors = st.fractions(min_value=0, max_value=2, max_denominator=12)
both = st.booleans()


def graph_of(*spans: Any, happens_before: bool = True) -> Any:
    task = build_task(trace(*spans))
    return task, build_graph(task, happens_before=happens_before)


def bars_of(task: Task) -> list[Bar]:
    """The same spans as the enumerator takes them: parents and links by index, phases of calls."""
    index = {w.span.span_id: i for i, w in enumerate(task.works)}
    names = {"model": "call"}
    return [
        Bar(
            index.get(w.span.parent_id or ""),
            w.span.start_ns,
            w.end_ns,
            names.get(w.kind, w.kind),
            tuple((p.kind, p.start_ns, p.end_ns) for p in w.phases),
            tuple(index[link.span_id] for link in w.span.links),
        )
        for w in task.works
    ]


@settings(max_examples=80, deadline=None)
@given(forests(), factors, both)
def test_agrees_with_the_enumerator_of_all_paths(spans: Any, x: Any, ordered: Any) -> None:
    task, graph = graph_of(*spans, happens_before=ordered)
    expected = Enumerator(bars_of(task), happens_before=ordered).makespan(x)
    assert makespan(graph, stretch(graph, task, kinds={"decode": x})) == expected


@settings(max_examples=120, deadline=None)
@given(tangles(), factors, st.sampled_from(["decode", "prefill", "tool"]), both)
def test_agrees_with_the_enumerator_on_tangles(
    spans: Any, x: Fraction, kind: str, ordered: Any
) -> None:
    task, graph = graph_of(*spans, happens_before=ordered)
    assume(not graph.repairs)
    expected = Enumerator(bars_of(task), happens_before=ordered).makespan(x, kind)
    assert makespan(graph, stretch(graph, task, kinds={kind: x})) == expected


@settings(max_examples=80, deadline=None)
@given(tangles(most=12) | forests(most=12, unfinished=True), both)
def test_speedup_one_reproduces_the_observed_makespan_and_the_path_sums_to_it(
    spans: Any, ordered: Any
) -> None:
    task, graph = graph_of(*spans, happens_before=ordered)
    known = [s.start_ns for s in spans] + [s.end_ns for s in spans if s.end_ns is not None]
    assert makespan(graph) == max(known) - min(known) == task.wall_ns
    assert makespan(graph, stretch(graph, task, kinds={"decode": Fraction(1)})) == task.wall_ns
    assert sum(s.lag_ns + s.duration_ns for s in critical_path(graph)) == task.wall_ns
    assert min(graph.lag_ns) >= 0


@settings(max_examples=80, deadline=None)
@given(
    tangles(most=12) | forests(most=12), st.fractions(min_value=1, max_value=8, max_denominator=9)
)
def test_saving_is_bounded_by_decode_on_the_path_with_equality_while_it_stays_critical(
    spans: Any, s: Any
) -> None:
    x = 1 / s
    task, graph = graph_of(*spans)
    path = critical_path(graph)
    decode = sum(step.duration_ns for step in path if graph.kind[step.node] == "decode")
    scaled = stretch(graph, task, kinds={"decode": x})
    gain = saving(graph, scaled)
    bound = (1 - x) * decode
    walked = sum(step.lag_ns + step.duration_ns * scaled[step.node] for step in path)
    assert 0 <= gain <= bound
    assert (gain == bound) == (makespan(graph, scaled) == walked)


@settings(max_examples=80, deadline=None)
@given(
    tangles(most=12) | forests(most=12), factors, factors, st.fractions(min_value=0, max_value=1)
)
def test_makespan_is_convex_and_non_decreasing_in_exact_fractions(
    spans: Any, x: Any, y: Any, weight: Any
) -> Any:
    task, graph = graph_of(*spans)

    def at(z: Fraction) -> Fraction:
        return makespan(graph, stretch(graph, task, kinds={"decode": z}))

    between = weight * x + (1 - weight) * y
    assert at(between) <= weight * at(x) + (1 - weight) * at(y)
    assert at(min(x, y)) <= at(max(x, y))


@settings(max_examples=40, deadline=None)
@given(tangles(most=8))
def test_makespan_is_piecewise_linear_and_its_slopes_are_the_decode_on_one_path(
    spans: Any,
) -> None:
    task, graph = graph_of(*spans)
    step = Fraction(1, 10**6)

    def at(z: Fraction) -> Fraction:
        return makespan(graph, stretch(graph, task, kinds={"decode": z}))

    total = sum(d for k, d in zip(graph.kind, graph.duration_ns, strict=True) if k == "decode")
    points = [Fraction(k, 7) + Fraction(1, 97) for k in range(14)]  # off the kinks, as a rule
    slopes = [(at(p + step) - at(p)) / step for p in points]
    assert slopes == sorted(slopes)
    assert all(0 <= slope <= total for slope in slopes)
    whole = [(p, slope) for p, slope in zip(points, slopes, strict=True) if slope.denominator == 1]
    assert len(whole) >= len(points) - 3
    for (p, slope), (q, other) in pairwise(whole):
        if slope == other:  # one path all the way
            assert at((p + q) / 2) == at(p) + slope * (q - p) / 2


@settings(max_examples=80, deadline=None)
@given(
    tangles(most=10) | forests(most=10, unfinished=True),
    st.randoms(use_true_random=False),
    st.integers(0, 10**15),
)
def test_result_ignores_span_order_clock_offset_and_duplicate_delivery(
    spans: Any, shuffler: Any, offset: Any
) -> None:
    first = profile_task(trace(*spans))
    moved = [
        replace(
            s,
            start_ns=s.start_ns + offset,
            end_ns=None if s.end_ns is None else s.end_ns + offset,
            attributes={
                k: v + offset if k == "langfuse.completion_start_ns" else v
                for k, v in s.attributes.items()
            },
        )
        for s in [*spans, *spans[: len(spans) // 2]]
    ]
    shuffler.shuffle(moved)
    second = profile_task(trace(*moved))
    assert first.graph == second.graph
    assert first.path == second.path
    assert first.saving == second.saving
    assert first.repairs == second.repairs
    assert first.segments_ns == second.segments_ns
    assert first.effects == second.effects


@pytest.mark.parametrize(
    "spans",
    [
        # One of each trouble, so that none of them depends on luck.
        [span("s0", 0, 9), span("s1", 2, 6, parent="lost", kind="decode")],
        [span("s0", 0, 9, kind="decode"), span("s1", 4, 12, parent="s0", kind="tool")],
        [span("s0", 0, 4, kind="decode"), span("s1", 4, 9, kind="tool", links=("s0",))],
        [span("s0", 3, 9), span("s1", 2, 6, parent="s0", kind="decode")],
        [span("s0", 0, None), span("s1", 2, 6, parent="s0", kind="decode")],
        [span("s0", 0, 4), span("s1", 4, 4, kind="decode"), span("s2", 4, 9, kind="decode")],
        [span("s0", 0, 9, kind="tool"), span("s1", 2, 6, parent="s0"), span("s2", 9, 9)],
        [
            span("s0", 0, 9),
            span("s1", 0, 9, parent="s0", kind="decode"),
            span("s2", 9, 12, kind="persistence", links=("s0",)),
        ],
    ],
)
@pytest.mark.parametrize("ordered", [True, False])
def test_agrees_with_the_enumerator_on_each_trouble(spans: Any, ordered: Any) -> None:
    task, graph = graph_of(*spans, happens_before=ordered)
    for x in (Fraction(0), Fraction(1, 2), Fraction(2)):
        expected = Enumerator(bars_of(task), happens_before=ordered).makespan(x)
        assert makespan(graph, stretch(graph, task, kinds={"decode": x})) == expected
