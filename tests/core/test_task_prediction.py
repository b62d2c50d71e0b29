from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from span_builders import span, trace

from gatekeeper.core.task_prediction import Speedup, predict_saving
from gatekeeper.errors import InputError

S = 10**9


def call(name: str, start: int, end: int, first: float, **attributes: Any) -> Any:
    return span(
        name,
        start * S,
        end * S,
        parent="root",
        gen_ai__operation__name="chat",
        gen_ai__response__time_to_first_chunk=first,
        gen_ai__usage__output_tokens=10,
        **attributes,
    )


def at(concurrency: int) -> dict[str, Any]:
    return {"gatekeeper__concurrency": concurrency}


def test_each_call_gains_the_ratio_of_its_own_concurrency() -> None:
    task = trace(
        span("root", 0, 12 * S),
        call("a", 0, 5, 1.0),  # 4 s of decode alone
        call("b", 5, 10, 1.0, **at(2)),  # 4 s of decode in company
        call("c", 10, 12, 1.0, **at(3)),  # 1 s where nothing was measured
    )
    found = predict_saving(task, [Speedup(1, 1.6, 2.0, 4.0), Speedup(2, 1.0, 1.25, 2.0)])
    assert found.value_ns == (Fraction(4, 2) + Fraction(4, 5)) * S
    assert found.low_ns == 4 * (1 - Fraction(10, 16)) * S
    assert found.high_ns == (3 + 2) * S
    assert (found.wall_ns, found.problem) == (12 * S, None)


def test_a_branch_beside_a_slower_tool_saves_nothing() -> None:
    task = trace(
        span("root", 0, 10 * S),
        call("branch", 0, 5, 1.0),
        span("tool", 0, 8 * S, parent="root", kind="tool"),
        call("summary", 8, 10, 1.0),
    )
    two = [Speedup(1, 2.0, 2.0, 2.0)]
    assert predict_saving(task, two).value_ns == Fraction(1, 2) * S
    branch = predict_saving(task, two, only=lambda one: one.name == "branch")
    assert branch.value_ns == 0


def test_a_slow_down_costs() -> None:
    task = trace(span("root", 0, 5 * S), call("a", 0, 5, 1.0))
    found = predict_saving(task, [Speedup(1, 0.5, 0.8, 1.0)])
    assert (found.low_ns, found.value_ns, found.high_ns) == (-4 * S, -1 * S, 0)


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([span("root", 0, S)], "no model call"),
        (
            [
                span("root", 0, 5 * S),
                span("a", 0, 5 * S, parent="root", gen_ai__usage__output_tokens=10),
            ],
            "grade C",
        ),
        (
            [
                span("root", 0, 5 * S, gen_ai__usage__output_tokens=11),
                call("a", 0, 5, 1.0),
            ],
            "does not reconcile",
        ),
    ],
)
def test_what_cannot_be_predicted_is_unknown_and_said(spans: list[Any], said: str) -> None:
    found = predict_saving(trace(*spans), [Speedup(1, 1.0, 2.0, 3.0)])
    assert (found.value_ns, found.low_ns, found.high_ns) == (None, None, None)
    assert said in str(found.problem)


def test_a_prediction_needs_a_measurement() -> None:
    with pytest.raises(InputError):
        predict_saving(trace(span("root", 0, S)), [])


@pytest.mark.parametrize(
    "ends", [(0, 1, 2), (2, 1, 3), (1, 3, 2), (1, 2, float("inf")), (float("nan"), 1, 2)]
)
def test_a_speed_up_needs_an_ordered_interval(ends: tuple[float, float, float]) -> None:
    with pytest.raises(InputError):
        Speedup(1, *ends)


def test_a_speed_up_needs_a_concurrency() -> None:
    with pytest.raises(InputError):
        Speedup(0, 1, 2, 3)


def test_phases_that_a_server_writes_as_spans_below_are_the_calls() -> None:
    task = trace(
        span("root", 0, 10 * S),
        span("llm", 0, 10 * S, parent="root", kind="model", **at(2)),
        span("p", 0, 2 * S, parent="llm", kind="prefill"),
        span("d", 2 * S, 10 * S, parent="llm", kind="decode"),
    )
    assert predict_saving(task, [Speedup(2, 2.0, 2.0, 2.0)]).value_ns == 4 * S
