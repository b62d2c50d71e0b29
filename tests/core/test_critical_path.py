from __future__ import annotations

import random
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from path_enumerator import Bar, Enumerator
from span_builders import span, trace

from gatekeeper.core.causes import causes_of
from gatekeeper.core.critical_path import (
    critical_path,
    factor,
    makespan,
    saving,
    saving_draws,
    stretch,
)
from gatekeeper.core.event_graph import build_graph
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.tasks import build_task
from gatekeeper.core.traces import Span, assemble
from gatekeeper.errors import InputError

HALF = Fraction(1, 2)


def graph_of(*spans: Span, happens_before: bool = True) -> Any:
    task = build_task(trace(*spans))
    return task, build_graph(task, happens_before=happens_before)


def saved(*spans: Span, x: Fraction = HALF, happens_before: bool = True) -> Fraction:
    task, graph = graph_of(*spans, happens_before=happens_before)
    return saving(graph, stretch(graph, task, kinds={"decode": x}))


# --- examples with a known answer -----------------------------------------------------------


def test_lag_belongs_to_the_node_so_a_later_tool_moves_with_decode() -> None:
    spans = (
        span("root", 0, 60),
        span("first", 0, 10, parent="root", kind="tool"),
        span("llm", 10, 50, parent="root", kind="decode"),
        span("last", 51, 60, parent="root", kind="tool"),
    )
    assert saved(*spans) == 20


def test_explicit_causes_alone_leave_siblings_unordered() -> None:
    spans = (
        span("root", 0, 60),
        span("llm", 10, 50, parent="root", kind="decode"),
        span("last", 51, 60, parent="root", kind="tool"),
    )
    assert saved(*spans) == 20
    assert saved(*spans, happens_before=False) == 0
    linked = (*spans[:2], replace(spans[2], links=span("", 0, 0, links=("llm",)).links))
    assert saved(*linked, happens_before=False) == 20


def test_touching_siblings_are_ordered() -> None:
    spans = (
        span("root", 0, 100),
        span("a", 0, 40, parent="root", kind="decode"),
        span("b", 40, 80, parent="root", kind="decode"),
        span("c", 80, 100, parent="root", kind="tool"),
    )
    task, graph = graph_of(*spans)
    worked = [s.node for s in critical_path(graph) if graph.kind[s.node] is not None]
    assert [task.works[graph.work[n]].span.span_id for n in worked] == ["a", "b", "c"]
    assert saved(*spans) == 40


def test_parallel_tool_hides_the_faster_decode() -> None:
    spans = (
        span("root", 0, 100),
        span("llm", 0, 100, parent="root", kind="decode"),
        span("db", 0, 80, parent="root", kind="tool"),
    )
    assert saved(*spans) == 20
    assert saved(*spans, x=Fraction(0)) == 20


def test_child_that_outlives_its_parent_is_never_cut_off() -> None:
    spans = (
        span("root", 0, 60),
        span("prefill", 0, 10, parent="root", kind="prefill"),
        span("decode", 9, 50, parent="prefill", kind="decode"),
        span("tool", 50, 60, parent="root", kind="tool"),
    )
    task, graph = graph_of(*spans)
    assert makespan(graph) == 60
    assert saved(*spans) == Fraction(41, 2)
    assert len(task.calls) == 1


def test_streaming_consumer_starts_in_mid_decode_and_moves_with_it() -> None:
    spans = (
        span("llm", 0, 100, kind="model", llm__token_count__completion=9, ttft_ms=0),
        span("tool", 60, 100, parent="llm", kind="tool"),
    )
    task, graph = graph_of(*spans)
    assert task.works[0].call is not None
    assert task.works[0].call.grade == "B"
    assert saving(graph, stretch(graph, task, kinds={"decode": HALF})) == 30


def test_tool_call_ids_tie_a_sibling_to_the_middle_of_a_call_and_to_the_next() -> None:
    common = {"ttft_ms": 0, "llm__token_count__completion": 9}
    spans = (
        span("root", 0, 200),
        span("one", 0, 100, parent="root", kind="model", output="call_abc", **common),
        span("tool", 60, 100, parent="root", kind="tool", gen_ai__tool__call__id="call_abc"),
        span("two", 100, 200, parent="root", kind="model", messages="of call_abc", **common),
    )
    assert saved(*spans, happens_before=False) == 30 + 50


def test_link_to_a_container_waits_for_all_that_is_inside() -> None:
    spans = (
        span("agent", 0, 100),
        span("llm", 0, 100, parent="agent", kind="decode"),
        span("store", 100, 110, kind="persistence", links=("agent",)),
    )
    assert saved(*spans, happens_before=False) == 50


def test_unfinished_last_span_holds_the_end_of_the_task() -> None:
    spans = (span("llm", 0, 100, kind="decode"), span("lost", 200, None, kind="tool"))
    assert saved(*spans, happens_before=False) == 0
    assert saved(*spans) == 50


def test_work_inside_a_model_call_that_repeats_its_time_does_not_hide_it() -> None:
    spans = (
        span("llm", 0, 100, kind="decode"),
        span("POST /v1/chat", 1, 99, parent="llm"),
    )
    assert saved(*spans) == 50


def test_model_span_around_model_spans_is_their_container() -> None:
    spans = (
        span("outer", 0, 100, kind="model", gen_ai__usage__output_tokens=7),
        span("inner", 0, 100, parent="outer", kind="model", gen_ai__usage__output_tokens=7),
    )
    task, _ = graph_of(*spans)
    assert [task.works[i].span.span_id for i, _ in task.calls] == ["inner"]
    assert task.tokens_agree is True


def test_token_totals_that_disagree_are_not_priced() -> None:
    spans = (
        span("agent", 0, 100, gen_ai__usage__output_tokens=8),
        span("llm", 0, 100, parent="agent", kind="model", gen_ai__usage__output_tokens=7),
    )
    profiled = profile_task(trace(*spans))
    assert not profiled.reconciled
    assert profiled.saving.value is None


def test_any_kind_or_name_can_be_scaled() -> None:
    spans = (
        span("root", 0, 60),
        span("search", 0, 20, parent="root", kind="tool"),
        span("llm", 20, 60, parent="root", kind="decode"),
    )
    task, graph = graph_of(*spans)
    assert saving(graph, stretch(graph, task, kinds={"tool": HALF})) == 10
    assert saving(graph, stretch(graph, task, names={"search": Fraction(0)})) == 20
    llm = [w.span.span_id for w in task.works].index("llm")
    draws = saving_draws(graph, task, [{llm: HALF}, {llm: Fraction(2)}])
    assert draws == [20, -40]


def test_mean_factor_overstates_the_saving() -> None:
    spans = (
        span("root", 0, 100),
        span("llm", 0, 100, parent="root", kind="decode"),
        span("tool", 0, 70, parent="root", kind="tool"),
    )
    task, graph = graph_of(*spans)
    llm = [w.span.span_id for w in task.works].index("llm")
    one, other = saving_draws(graph, task, [{llm: Fraction(2, 5)}, {llm: Fraction(4, 5)}])
    (mean,) = saving_draws(graph, task, [{llm: Fraction(3, 5)}])
    assert mean > (one + other) / 2


def test_speedup_is_read_as_the_decimal_that_was_written() -> None:
    assert factor(1.1) == Fraction(10, 11)
    assert factor("2") == HALF


@pytest.mark.parametrize("bad", [0, -1, "0", "nan", float("inf"), "two"])
def test_speedup_that_is_no_positive_number_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="speedup="):
        factor(bad)


# --- properties on random forests -----------------------------------------------------------

KINDS = ("other", "tool", "decode")


@st.composite
def forests(draw: Any, *, most: Any = 7, unfinished: Any = False) -> Any:
    """Spans anywhere relative to their parents: early, outliving, outside, touching, empty."""
    count = draw(st.integers(1, most))
    made = []
    for i in range(count):
        start = draw(st.integers(0, 9))
        end: int | None = start + draw(st.integers(0, 5))
        if unfinished and draw(st.integers(0, 5)) == 0:
            end = None
        parent = draw(st.none() | st.integers(0, i - 1)) if i else None
        made.append(
            span(
                f"s{i}",
                start,
                end,
                parent=None if parent is None else f"s{parent}",
                kind=draw(st.sampled_from(KINDS)),
            )
        )
    return made


factors = st.fractions(min_value=0, max_value=2, max_denominator=12)


@settings(max_examples=150, deadline=None)
@given(forests(), factors, st.booleans())
def test_agrees_with_the_enumerator_of_all_paths(spans: Any, x: Any, ordered: Any) -> None:
    task, graph = graph_of(*spans, happens_before=ordered)
    index = {w.span.span_id: i for i, w in enumerate(task.works)}
    bars = [
        Bar(
            None if w.span.parent_id is None else index[w.span.parent_id],
            w.span.start_ns,
            w.span.end_ns,
            w.span.attributes["gatekeeper.kind"],
        )
        for w in task.works
    ]
    expected = Enumerator(bars, happens_before=ordered).makespan(x)
    assert makespan(graph, stretch(graph, task, kinds={"decode": x})) == expected


@settings(max_examples=100, deadline=None)
@given(forests(most=12, unfinished=True), st.booleans())
def test_speedup_one_reproduces_the_observed_makespan_and_the_path_sums_to_it(
    spans: Any, ordered: Any
) -> None:
    task, graph = graph_of(*spans, happens_before=ordered)
    known = [s.start_ns for s in spans] + [s.end_ns for s in spans if s.end_ns is not None]
    assert makespan(graph) == max(known) - min(known) == task.wall_ns
    assert sum(s.lag_ns + s.duration_ns for s in critical_path(graph)) == task.wall_ns
    assert min(graph.lag_ns) >= 0


@settings(max_examples=100, deadline=None)
@given(forests(most=12), st.fractions(min_value=1, max_value=8, max_denominator=9))
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


@settings(max_examples=100, deadline=None)
@given(forests(most=12), factors, factors, st.fractions(min_value=0, max_value=1))
def test_makespan_is_convex_and_non_decreasing_in_exact_fractions(
    spans: Any, x: Any, y: Any, weight: Any
) -> Any:
    task, graph = graph_of(*spans)

    def at(z: Fraction) -> Fraction:
        return makespan(graph, stretch(graph, task, kinds={"decode": z}))

    between = weight * x + (1 - weight) * y
    assert at(between) <= weight * at(x) + (1 - weight) * at(y)
    assert at(min(x, y)) <= at(max(x, y))


@settings(max_examples=150, deadline=None)
@given(forests(most=10, unfinished=True), st.randoms(use_true_random=False), st.integers(0, 10**15))
def test_result_ignores_span_order_clock_offset_and_duplicate_delivery(
    spans: Any, shuffler: Any, offset: Any
) -> None:
    first = profile_task(trace(*spans))
    moved = [
        replace(
            s,
            start_ns=s.start_ns + offset,
            end_ns=None if s.end_ns is None else s.end_ns + offset,
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


# --- size -----------------------------------------------------------------------------------


def wide(count: int) -> list[Span]:
    children = [
        span(f"c{i:06d}", 2 * i, 2 * i + (3 if i % 3 else 1), parent="root", kind=KINDS[i % 3])
        for i in range(count)
    ]
    return [span("root", 0, 2 * count + 2), *children]


def deep(count: int) -> list[Span]:
    """Each child outlives its parent, the worst case for finding where it is joined."""
    return [
        span(f"d{i:06d}", i, count + i, parent=f"d{i - 1:06d}" if i else None, kind="other")
        for i in range(count)
    ]


def early(count: int) -> list[Span]:
    """Each child begins before its parent, the worst case for finding where it forks."""
    return [
        span(f"e{i:06d}", count - i, count, parent=f"e{i - 1:06d}" if i else None)
        for i in range(count)
    ]


@pytest.mark.parametrize("shape", [wide, deep, early])
def test_graph_grows_linearly_and_never_recurses(shape: Any) -> None:
    sizes = []
    for count in (1_000, 10_000):
        task = build_task(trace(*shape(count)))
        graph = build_graph(task)
        assert makespan(graph) == task.wall_ns
        sizes.append(len(graph) + sum(map(len, graph.predecessors)))
    assert sizes[1] <= 10.5 * sizes[0]


def test_ten_thousand_spans_are_profiled_in_seconds() -> None:
    made = wide(10_000)
    random.Random(1).shuffle(made)
    (one,) = assemble(made, source_format="test")
    begin = time.process_time()
    profile_task(one)
    assert time.process_time() - begin < 20


def test_essay_example_saves_twelve_percent() -> None:
    from gatekeeper_adapters.traces.otlp import FORMAT

    import gatekeeper
    from gatekeeper.core.trace_documents import read_traces

    shipped = Path(gatekeeper.__file__).parent / "examples" / "essay-trace.json"
    (one,) = read_traces(shipped.read_bytes(), [FORMAT])
    profiled = profile_task(one, speedup=2)
    ms = 10**6
    assert profiled.critical_path_ns == {
        "queue": 600 * ms,
        "prefill": 400 * ms,
        "decode": 1200 * ms,
        "tool": 2000 * ms,
        "verification": 800 * ms,
        "persistence": 0,
        "human_wait": 0,
        "other": 0,
    }
    assert profiled.task.wall_ns == 5000 * ms
    assert profiled.saving.value == profiled.saving.explicit_only == 600 * ms
    assert profiled.saving.value / profiled.task.wall_ns == Fraction(12, 100)
    assert profiled.evidence_grade == "A"


def test_call_that_only_repeats_an_id_in_its_input_did_not_cause_the_tool() -> None:
    common = {"ttft_ms": 0, "llm__token_count__completion": 9}
    spans = (
        span("root", 0, 200),
        span("tool", 50, 90, parent="root", kind="tool", gen_ai__tool__call__id="call_abc"),
        span(
            "llm",
            0,
            200,
            parent="root",
            kind="model",
            messages="earlier: call_abc",
            output="about call_abc",
            **common,
        ),
    )
    task = build_task(trace(*spans))
    assert causes_of(task.works) == ()
