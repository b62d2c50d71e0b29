from __future__ import annotations

import random
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from random_traces import KINDS
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


def test_any_kind_or_span_can_be_scaled() -> None:
    spans = (
        span("root", 0, 60),
        span("search", 0, 20, parent="root", kind="tool"),
        span("llm", 20, 60, parent="root", kind="decode"),
    )
    task, graph = graph_of(*spans)
    llm, search = ([w.span.span_id for w in task.works].index(name) for name in ("llm", "search"))
    assert saving(graph, stretch(graph, task, kinds={"tool": HALF})) == 10
    assert saving(graph, stretch(graph, task, works={search: {"tool": Fraction(0)}})) == 20
    assert saving(graph, stretch(graph, task, works={search: {"decode": Fraction(0)}})) == 0
    assert (
        saving(graph, stretch(graph, task, kinds={"decode": HALF}, calls={llm: Fraction(1)})) == 0
    )
    draws = saving_draws(graph, task, [{llm: {"decode": HALF}}, {llm: {"decode": Fraction(2)}}])
    assert draws == [20, -40]
    with pytest.raises(InputError, match="work=7: is not a span of this task"):
        stretch(graph, task, calls={7: HALF})


def test_mean_factor_overstates_the_saving() -> None:
    spans = (
        span("root", 0, 100),
        span("llm", 0, 100, parent="root", kind="decode"),
        span("tool", 0, 70, parent="root", kind="tool"),
    )
    task, graph = graph_of(*spans)
    llm = [w.span.span_id for w in task.works].index("llm")

    def drawn(*factors: Fraction) -> list[Fraction]:
        return saving_draws(graph, task, [{llm: {"decode": x}} for x in factors])

    one, other, mean = drawn(Fraction(2, 5), Fraction(4, 5), Fraction(3, 5))
    assert mean > (one + other) / 2


def test_speedup_is_read_as_the_decimal_that_was_written() -> None:
    assert factor(1.1) == Fraction(10, 11)
    assert factor("2") == HALF


@pytest.mark.parametrize("bad", [0, -1, "0", "nan", float("inf"), "two"])
def test_speedup_that_is_no_positive_number_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="speedup="):
        factor(bad)


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
