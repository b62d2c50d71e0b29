from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import tangles
from span_builders import TRACE_ID, span, trace

from gatekeeper.core.model_calls import CallTiming, Phase
from gatekeeper.core.task_profile import profile_task, token_rates
from gatekeeper.core.tasks import build_task, with_rates
from gatekeeper.core.token_rates import ASSUMED_RATE, TokenRate, TokenRates, observed_rates

MS = 10**6


def seen(per_token_ms: Any, *, tokens: Any = 10, model: Any = "small", route: Any = None) -> Any:
    decode = Phase("decode", 0, round(tokens * per_token_ms * MS))
    return CallTiming("B", (decode,), tokens, model=model, route=route)


def asked(model: Any = "small", route: Any = None) -> Any:
    return CallTiming("C", (), 10, model=model, route=route)


def test_rate_is_the_median_of_the_routes_own_calls() -> None:
    rates = observed_rates(
        [
            *(seen(ms, route="chat") for ms in (8, 10, 30)),
            *(seen(ms, route="batch") for ms in (50, 60, 70)),
        ]
    )
    assert rates.of(asked(route="chat")).typical_ns == 10 * MS
    assert rates.of(asked(route="batch")).typical_ns == 60 * MS
    assert rates.of(asked(route="elsewhere")).typical_ns == 40 * MS  # the model on all routes
    assert "route chat to small" in rates.of(asked(route="chat")).source


def test_route_with_too_few_calls_takes_its_models_rate() -> None:
    rates = observed_rates(
        [seen(8, route="rare"), *(seen(ms, route="chat") for ms in (10, 12, 14))]
    )
    assert rates.of(asked(route="rare")).typical_ns == 11 * MS
    alone = observed_rates([seen(8, route="rare")])
    assert alone.of(asked(route="rare")).typical_ns == 8 * MS


def test_models_lend_each_other_no_rate() -> None:
    rates = observed_rates([seen(8, model="small", route="chat")])
    assert rates.of(asked(model="large", route="chat")) is ASSUMED_RATE
    assert rates.of(asked(model=None, route="chat")) is ASSUMED_RATE


def test_calls_without_a_model_share_their_routes_rate_only() -> None:
    rates = observed_rates([seen(8, model=None, route="chat"), seen(9, model=None)])
    assert rates.of(asked(model=None, route="chat")).typical_ns == 8 * MS
    assert rates.of(asked(model=None)) is ASSUMED_RATE


def test_error_is_measured_by_leaving_calls_out() -> None:
    rate = observed_rates(seen(ms) for ms in (10, 10, 10, 20)).of(asked())
    # Each of the three is estimated exactly from the others, the fourth at half its time.
    assert (rate.calls, rate.error_p50, rate.error_p90) == (4, 0, Fraction(1, 2))
    assert "the error is 0% (median) and 50% (90th percentile)" in rate.source


def test_range_of_many_calls_is_measured_and_of_few_is_borrowed() -> None:
    few = observed_rates(seen(ms) for ms in (10, 10, 10)).of(asked())
    assert (few.low_ns, few.high_ns) == (Fraction(61, 10) * MS, Fraction(139, 10) * MS)
    many = observed_rates(seen(ms) for ms in (5, *[10] * 18, 40)).of(asked())
    assert (many.low_ns, many.high_ns) == (10 * MS, 10 * MS)
    wide = observed_rates(seen(ms) for ms in (*[5] * 4, *[10] * 12, *[40] * 4)).of(asked())
    assert (wide.low_ns, wide.high_ns) == (5 * MS, 40 * MS)


def test_one_or_two_calls_do_not_measure_their_error() -> None:
    rate = observed_rates([seen(10), seen(30)]).of(asked())
    assert rate.error_p50 is rate.error_p90 is None
    assert "too few to measure the error" in rate.source


@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=30))
def test_leaving_out_by_index_is_leaving_out(values: Any) -> None:
    rate = observed_rates(
        CallTiming("B", (Phase("decode", 0, v),), 1, model="m") for v in values
    ).of(asked("m"))
    errors = []
    for i, value in enumerate(values):
        others = sorted(values[:i] + values[i + 1 :])
        n = len(others)
        estimate = Fraction(others[n // 2] + others[(n - 1) // 2], 2)
        errors.append(abs(estimate - value) / value)
    errors.sort()
    assert rate.error_p50 == errors[-(-50 * len(errors) // 100) - 1]
    assert rate.error_p90 == errors[-(-90 * len(errors) // 100) - 1]
    assert rate.low_ns <= rate.typical_ns <= rate.high_ns


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12), st.integers(2, 1000))
def test_rate_follows_the_unit_of_time(values: Any, scale: Any) -> None:
    def fitted(by: Any) -> Any:
        calls = (CallTiming("B", (Phase("decode", 0, v * by),), 3, model="m") for v in values)
        return observed_rates(calls).of(asked("m"))

    one, many = fitted(1), fitted(scale)
    assert many.typical_ns == scale * one.typical_ns
    assert (many.low_ns, many.high_ns) == (scale * one.low_ns, scale * one.high_ns)
    assert (many.error_p50, many.error_p90) == (one.error_p50, one.error_p90)


def calls_of(route: Any, *lengths_ms: Any) -> Any:
    return [
        span(
            f"{route}{i}",
            i * 1000 * MS,
            (i * 1000 + 100 + ms) * MS,
            parent=route,
            kind="model",
            ttft_ms=100,
            gen_ai__usage__output_tokens=10,
            gen_ai__request__model="small",
        )
        for i, ms in enumerate(lengths_ms)
    ]


def hidden(span_id: Any, parent: Any) -> Any:
    return span(
        span_id,
        9000 * MS,
        9900 * MS,
        parent=parent,
        kind="model",
        gen_ai__usage__output_tokens=10,
        gen_ai__request__model="small",
    )


def test_call_takes_the_rate_of_the_route_named_above_it() -> None:
    found = trace(
        span("chat", 0, 9900 * MS, gatekeeper__route="chat"),
        *calls_of("chat", 100, 100, 100),
        span("batch", 0, 9900 * MS, gatekeeper__route="batch"),
        *calls_of("batch", 500, 500, 500),
        hidden("c", "chat"),
        hidden("b", "batch"),
    )
    rates = token_rates([found])
    task = profile_task(found, rates=rates).task
    decode = {
        work.span.span_id: sum(p.end_ns - p.start_ns for p in work.phases if p.kind == "decode")
        for work in task.works
        if work.call is not None and work.call.grade == "C"
    }
    assert decode == {"c": 100 * MS, "b": 500 * MS}
    assert {call.route for _, call in task.calls} == {"chat", "batch"}


def test_routes_that_rules_assign_count_like_named_ones() -> None:
    found = trace(
        span("one", 0, 9900 * MS),
        *calls_of("one", 100, 100, 100),
        span("two", 0, 9900 * MS),
        *calls_of("two", 500, 500, 500),
        hidden("c", "one"),
    )
    routes = {
        (found.trace_id, s.span_id): "chat" if s.parent_id == "one" else "batch"
        for s in found.spans
        if s.parent_id
    }
    rates = token_rates([found], routes=routes)
    profiled = profile_task(found, rates=rates)
    assert any(
        "10.0 ms per output token (median of 3 calls of route chat" in n for n in profiled.repairs
    )
    assert not TokenRates().fitted


EDGES = ("typical", "low", "high")


@settings(max_examples=60, deadline=None)
@given(tangles(), st.sampled_from(EDGES), st.sets(st.sampled_from(["s0", "s1", "s2", "s3"])))
def test_a_task_at_other_rates_is_what_its_trace_makes_of_them(
    spans: Any, edge: Any, ruled: Any
) -> None:
    untold = [
        replace(s, attributes={**s.attributes, "langfuse.completion_start_ns": None}) for s in spans
    ]
    found = trace(*untold)
    rate = TokenRate(Fraction(3), Fraction(2), Fraction(5, 2), "test")
    rates = TokenRates({("chat", None): rate}, {(TRACE_ID, name): "chat" for name in ruled})
    expected = build_task(found, rates=rates, edge=edge)
    assert with_rates(build_task(found), rates, edge=edge) == expected
    assert with_rates(build_task(found, rates=rates), rates, edge=edge) == expected


@pytest.mark.parametrize("edge", EDGES)
def test_edges_are_named(edge: Any) -> None:
    assert ASSUMED_RATE.at(edge) == getattr(ASSUMED_RATE, f"{edge}_ns")
