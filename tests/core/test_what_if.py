from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from span_builders import span, trace

from gatekeeper.core.critical_path import saving
from gatekeeper.core.event_graph import build_graph
from gatekeeper.core.routing import Rule
from gatekeeper.core.task_assignment import RoutedRules, Routing
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.tasks import build_task
from gatekeeper.core.what_if import Change, WhatIf, names_of, scope_of
from gatekeeper.errors import InputError

ZERO = Fraction(0)


def asked(*texts: str, **more: Any) -> WhatIf:
    return WhatIf(tuple(map(Change.parse, texts)), **more)


def call(name: str, start: int, first: int, end: int, **more: Any) -> Any:
    return span(
        name,
        start,
        end,
        parent=more.pop("parent", "root"),
        kind="model",
        langfuse__completion_start_ns=first,
        **more,
    )


SPANS = (
    span("root", 0, 100),
    call("one", 0, 10, 40, gen_ai__request__model="small"),
    span("execute_tool search", 40, 60, parent="root", kind="tool", gen_ai__tool__name="search"),
    span("execute_tool fetch", 60, 70, parent="root", kind="tool", gen_ai__tool__name="fetch"),
    call("two", 70, 80, 100, gen_ai__request__model="large"),
)


def value(*texts: str, **more: Any) -> Fraction | None:
    return profile_task(trace(*SPANS), what_if=asked(*texts, **more)).saving.value


@pytest.mark.parametrize(
    ("texts", "saved"),
    [
        (["decode=2"], 15 + 10),
        (["tool=2"], 10 + 5),
        (["tool:search=2"], 10),
        (["tool:execute_tool f*=2"], 5),
        (["decode:small=2"], 15),
        (["decode:two=2"], 10),
        (["prefill=0.5"], -20),
        (["decode=2", "tool:search=2", "prefill=0.5"], 25 + 10 - 20),
        (["decode=1"], 0),
    ],
)
def test_any_kind_and_any_name_can_be_asked_about(texts: list[str], saved: int) -> None:
    assert value(*texts) == saved


def test_a_named_change_goes_before_a_kind_and_the_first_name_before_the_next() -> None:
    assert value("tool=2", "tool:search=1") == 5
    assert value("tool:search=1", "tool=2") == 5
    assert value("tool:search=2", "tool:*=1") == 10
    assert value("tool:*=1", "tool:search=2") == 0
    every = Routing((RoutedRules("all", (Rule("all", model="*"),)),))
    assert value("decode:two=1", "decode=2", route="all", routing=every) == 15
    assert value("decode=2", "decode:two=1", route="all", routing=every) == 15


def test_a_route_scales_its_own_calls_alone() -> None:
    rules = Routing((RoutedRules("big", (Rule("big", model="lar*"),)),))
    assert value("decode=2", route="big", routing=rules) == 10
    assert value("decode=2", "prefill=0.5", route="big", routing=rules) == 10 - 10
    assert value("decode:small=2", route="big", routing=rules) == 0
    assert value("decode=2", route="nobody", routing=rules) == 0


def test_phases_that_are_spans_below_a_call_answer_to_its_model_and_its_route() -> None:
    spans = (
        span("root", 0, 100),
        span("llm", 0, 100, parent="root", kind="model", gen_ai__request__model="m"),
        span("p", 0, 40, parent="llm", kind="prefill"),
        span("d", 40, 100, parent="llm", kind="decode"),
    )
    rules = Routing((RoutedRules("r", (Rule("r", model="m"),)),))
    for what in (asked("decode:m=2"), asked("decode=2", route="r", routing=rules)):
        assert profile_task(trace(*spans), what_if=what).saving.value == 30


def test_each_change_is_taken_apart() -> None:
    profile = profile_task(trace(*SPANS), what_if=asked("decode=2", "tool:search=2"))
    decode, search = profile.effects
    assert (decode.spans, decode.work_ns, decode.on_path_ns) == (2, 50, 50)
    assert (decode.saving_ns, decode.ceiling_ns) == (25, 50)
    assert (search.spans, search.work_ns, search.saving_ns, search.ceiling_ns) == (1, 20, 10, 20)
    assert profile.speedup == 2
    assert profile_task(trace(*SPANS), what_if=asked("tool=2")).speedup == 1


def test_the_interval_moves_every_gain_and_the_value_lies_inside() -> None:
    saved = profile_task(trace(*SPANS), what_if=asked("decode=2", "prefill=0.5")).saving
    assert saved.low is not None
    assert saved.value is not None
    assert saved.high is not None
    assert saved.low < saved.value < saved.high
    # Prefill at 0.375 and decode at 1.75; prefill at 0.625 and decode at 2.25.
    assert saved.low == 50 - Fraction(50) / Fraction(7, 4) + 20 - 20 / Fraction(3, 8)
    assert saved.high == 50 - Fraction(50) / Fraction(9, 4) + 20 - 20 / Fraction(5, 8)


def test_grade_d_hides_decode_but_not_the_tools() -> None:
    spans = (
        span("root", 0, 100),
        span("llm", 0, 60, parent="root", kind="model"),
        span("search", 60, 100, parent="root", kind="tool"),
    )
    assert profile_task(trace(*spans), what_if=asked("decode=2")).saving.value is None
    found = profile_task(trace(*spans), what_if=asked("tool:search=2"))
    assert found.evidence_grade == "D"
    assert found.saving.value == 20
    both = profile_task(trace(*spans), what_if=asked("tool:search=2", "decode=2"))
    assert both.saving.value is None
    assert [effect.saving_ns for effect in both.effects] == [None, None]


def test_an_unreconciled_task_has_no_saving_whatever_is_asked() -> None:
    spans = (
        span("root", 0, 100, gen_ai__usage__output_tokens=8),
        span("llm", 0, 60, parent="root", kind="model", gen_ai__usage__output_tokens=7),
        span("search", 60, 100, parent="root", kind="tool"),
    )
    found = profile_task(trace(*spans), what_if=asked("tool=2"))
    assert not found.reconciled
    assert found.saving.value is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "speedup=fast: names no work"),
        ("=2", "names no work"),
        ("tooool=2", "is not a segment kind; use one of queue"),
        ("model=2", "is not a segment kind"),
        ("tool:=2", "has no name"),
        ("tool=0", "must be above 0"),
        ("tool=-1", "must be above 0"),
        ("tool=fast", "is not a finite number"),
        ("tool=", "is not a finite number"),
        ("tool=nan", "is not a finite number"),
    ],
)
def test_what_is_no_change_is_refused_by_value_and_remedy(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Change.parse(text)
    assert caught.value.remedy


def test_contradictions_are_refused() -> None:
    with pytest.raises(InputError, match="changes nothing"):
        WhatIf(())
    with pytest.raises(InputError, match="speedup=decode: is given twice"):
        asked("decode=2", "decode=3")
    with pytest.raises(InputError, match="speedup=tool: belongs to no route"):
        asked("tool=2", route="r")


def test_names_may_hold_colons_and_equals_signs() -> None:
    change = Change.parse("tool:a:b=c=1.5")
    assert (change.kind, change.name, change.speedup) == ("tool", "a:b=c", Fraction(3, 2))
    assert change.segment == "tool:a:b=c"


def test_a_span_is_found_by_its_own_its_tools_and_its_models_name() -> None:
    task = build_task(trace(*SPANS))
    names = [names_of(task, i) for i in range(len(task.works))]
    assert ("execute_tool search", "search") in names
    assert ("one", "small") in names


# --- every kind obeys the laws that decode obeys ---------------------------------------------

KINDS = ("prefill", "tool", "decode", "persistence", "other")
ratios = st.fractions(min_value=Fraction(1, 4), max_value=8, max_denominator=9)


@st.composite
def forests(draw: Any) -> Any:
    made = [span("root", 0, draw(st.integers(10, 30)))]
    for i in range(draw(st.integers(1, 9))):
        start = draw(st.integers(0, 25))
        made.append(
            span(
                f"s{i}",
                start,
                start + draw(st.integers(0, 9)),
                parent=draw(st.sampled_from([one.span_id for one in made])),
                kind=draw(st.sampled_from(KINDS)),
                name=draw(st.sampled_from(["a", "b"])),
            )
        )
    return made


@settings(max_examples=60, deadline=None)
@given(forests(), st.sampled_from(KINDS), st.sampled_from([None, "a", "*"]), ratios, ratios)
def test_savings_of_any_work_are_bounded_monotone_and_convex(
    spans: Any, kind: str, name: str | None, s: Fraction, t: Fraction
) -> None:
    task = build_task(trace(*spans))
    graph = build_graph(task)
    profile = profile_task(trace(*spans), what_if=WhatIf((Change(kind, s, name),)))
    (effect,) = profile.effects

    def saved(ratio: Fraction) -> Fraction:
        what = WhatIf((Change(kind, ratio, name),))
        return saving(graph, scope_of(task, what).factors(graph, task))

    bound = (1 - 1 / s) * effect.on_path_ns
    assert saved(s) <= bound
    assert saved(Fraction(1)) == 0
    assert saved(min(s, t)) <= saved(max(s, t))
    middle = (1 / s + 1 / t) / 2  # concave in x = 1/s
    assert saved(1 / middle) >= (saved(s) + saved(t)) / 2
    gone = saving(graph, scope_of(task, profile.what_if).gone(graph, task, 0))
    assert saved(s) <= gone
