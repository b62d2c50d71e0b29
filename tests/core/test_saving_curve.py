from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from span_builders import span, trace

from gatekeeper.core.routing import Rule
from gatekeeper.core.saving_curve import GRID, Curve, route_curves
from gatekeeper.core.task_assignment import RoutedRules, Routing, assign
from gatekeeper.core.task_profile import profile_task, token_rates

if TYPE_CHECKING:
    from gatekeeper.core.traces import Span, Trace

ALL = Routing((RoutedRules("all", (Rule("all", attributes=(("who", "*"),)),)),))
HALF, ONE = Fraction(1, 2), Fraction(1)


def curves(one: Trace, routing: Routing = ALL) -> Any:
    rates = token_rates([one])
    profile = profile_task(one, speedup=2, rates=rates)
    return profile, route_curves(profile, assign(profile.task, routing), rates=rates)


def call(name: str, start: int, end: int, **more: Any) -> Span:
    first = more.pop("first", start)
    return span(
        name,
        start,
        end,
        kind="model",
        who=more.pop("who", "x"),
        langfuse__completion_start_ns=first,
        **more,
    )


def at(curve: Curve, x: Fraction) -> Fraction:
    return dict(curve)[x]


@st.composite
def forests(draw: st.DrawFn) -> Trace:
    spans = [span("root", 0, draw(st.integers(50, 120)), gatekeeper__route="all")]
    for i in range(draw(st.integers(1, 7))):
        start = draw(st.integers(0, 100))
        end = start + draw(st.integers(0, 40))
        parent = draw(st.sampled_from([s.span_id for s in spans]))
        kind = draw(st.sampled_from(["call", "tool", "tokens", "phases"]))
        if kind == "call":
            first = draw(st.integers(start, end))
            spans.append(call(f"s{i}", start, end, parent=parent, first=first))
        elif kind == "tokens":
            spans.append(
                span(
                    f"s{i}",
                    start,
                    end,
                    parent=parent,
                    kind="model",
                    who="x",
                    gen_ai__usage__output_tokens=draw(st.integers(1, 3)),
                )
            )
        elif kind == "phases":  # a server that writes its phases as spans of their own
            middle = draw(st.integers(start, end))
            spans += [
                span(f"s{i}", start, end, parent=parent, kind="model", who="x"),
                span(f"s{i}p", start, middle, parent=f"s{i}", kind="prefill"),
                span(f"s{i}d", middle, end, parent=f"s{i}", kind="decode"),
            ]
        else:
            spans.append(span(f"s{i}", start, end, parent=parent, kind="tool"))
    return trace(*spans)


@settings(max_examples=60, deadline=None)
@given(forests())
def test_a_curve_is_the_observation_at_one_convex_and_agrees_with_the_profile(one: Trace) -> None:
    profile, found = curves(one)
    if profile.saving.value is None:
        assert all(c.typical is None and c.ceiling_ns is None for c in found)
        return
    (only,) = found
    wall = profile.task.wall_ns
    for curve in (only.typical, only.low, only.high):
        assert [x for x, _ in curve] == list(GRID)
        assert at(curve, ONE) == wall
        slopes = [(b - a) / (right - left) for (left, a), (right, b) in pairwise(curve)]
        assert all(slope >= 0 for slope in slopes)
        assert slopes == sorted(slopes)
    assert wall - at(only.typical, HALF) == profile.saving.value
    assert only.ceiling_ns == profile.ceiling_ns
    assert only.decode_on_path_ns == profile.critical_path_ns["decode"]


@settings(max_examples=40, deadline=None)
@given(forests(), st.fractions(Fraction(1, 100), 3, max_denominator=1000))
def test_straight_lines_between_grid_points_never_overstate_a_saving(
    one: Trace, x: Fraction
) -> None:
    profile, found = curves(one)
    if profile.saving.value is None:
        return
    (only,) = found
    saved = profile_task(one, speedup=1 / x, rates=token_rates([one])).saving.value
    true = float(profile.task.wall_ns - saved)
    grid, makespans = np.array(only.typical, dtype=float).T
    assert np.interp(float(x), grid, makespans) >= true - 1e-9


def test_a_parallel_branch_that_waits_for_a_slow_tool_saves_nothing() -> None:
    one = trace(
        span("root", 0, 100),
        call("llm", 0, 60, parent="root"),
        span("slow", 0, 100, parent="root", kind="tool"),
    )
    _, (only,) = curves(one)
    assert at(only.typical, HALF) == 100
    assert only.ceiling_ns == 0
    assert only.decode_on_path_ns == 0
    assert at(only.typical, Fraction(2)) == 120  # but a slow-down shows


def test_ten_sequential_calls_compound() -> None:
    calls = [call(f"c{i}", 100 * i, 100 * i + 80, parent="root", first=100 * i) for i in range(10)]
    _, (only,) = curves(trace(span("root", 0, 1000), *calls))
    assert 1000 - at(only.typical, HALF) == 10 * 40
    assert only.calls == 10


def test_each_route_scales_its_own_decode_alone() -> None:
    routing = Routing(
        (
            RoutedRules("a", (Rule("a", attributes=(("who", "a"),)),)),
            RoutedRules("b", (Rule("b", attributes=(("who", "b"),)),)),
        )
    )
    one = trace(
        span("root", 0, 100),
        call("one", 0, 40, parent="root", who="a"),
        call("two", 40, 100, parent="root", who="b"),
    )
    profile, (a, b) = curves(one, routing)
    assert (a.route, b.route) == ("a", "b")
    assert 100 - at(a.typical, HALF) == 20
    assert 100 - at(b.typical, HALF) == 30
    assert profile.saving.value == 50


def test_token_counts_alone_give_a_lower_and_an_upper_curve() -> None:
    second = 10**9
    one = trace(
        span("root", 0, 10 * second),
        span(
            "llm",
            0,
            10 * second,
            parent="root",
            kind="model",
            who="x",
            gen_ai__usage__output_tokens=100,
        ),
    )
    _, (only,) = curves(one)
    assert only.grade == "C"
    saved = [10 * second - at(c, HALF) for c in (only.low, only.typical, only.high)]
    assert [round(s / 10**6) for s in saved] == [450, 1050, 1450]  # 9, 21, 29 ms a token, halved


def test_grade_d_has_no_curve_which_is_not_a_curve_of_zero() -> None:
    one = trace(span("root", 0, 100), span("llm", 0, 80, parent="root", kind="model", who="x"))
    _, (only,) = curves(one)
    assert (only.grade, only.typical, only.ceiling_ns, only.decode_on_path_ns) == (
        "D",
        None,
        None,
        None,
    )
