"""Whatever stands in a span's attributes: phases that cover it exactly, or none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from span_builders import span, trace

from gatekeeper.core.dialects.vocabulary import VOCABULARY
from gatekeeper.core.model_calls import output_tokens, split, timing
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.traces import SpanEvent

MS = 10**6

KEYS = sorted(
    {
        *VOCABULARY.output_tokens,
        *VOCABULARY.input_tokens,
        *VOCABULARY.total_tokens,
        *VOCABULARY.models,
        *VOCABULARY.first_token_times,
        *(delay.key for delay, _ in VOCABULARY.first_token_delays),
        *(delay.key for delay in VOCABULARY.answer_lengths),
        *(key for _, key in VOCABULARY.attempt_counts),
        *VOCABULARY.resend_counts,
        *VOCABULARY.error_statuses,
        *(
            part.key
            for phases, _ in VOCABULARY.server_phases
            for part in (phases.queue, phases.prefill, phases.decode, phases.inference)
        ),
    }
)
VALUES = st.one_of(
    st.integers(-5, 2000),
    st.integers(),
    st.floats(),
    st.floats(0, 2),
    st.sampled_from(["", "x", "0.25", "12", "-1", "NaN", "1e400", "1e999999999", "²", "429"]),
    st.booleans(),
    st.none(),
    st.just([1]),
    st.just({"a": 1}),
)
EVENTS = sorted([*VOCABULARY.first_token_events, *VOCABULARY.attempt_events, "other"])


@st.composite
def spans(draw: st.DrawFn, name: str = "claude_code.llm_request") -> Any:
    start = draw(st.integers(0, 500 * MS))
    end = draw(st.one_of(st.none(), st.integers(start, start + 2000 * MS)))
    events = draw(
        st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3000 * MS)), max_size=4)
    )
    one = span("a", start, end, name=name)
    return type(one)(
        **{
            **one.__dict__,
            "attributes": draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)),
            "events": tuple(SpanEvent(event, at) for event, at in events),
        }
    )


@settings(max_examples=50)
@given(spans(), st.lists(spans(name="POST"), max_size=2), st.fractions(0, 10**9))
def test_phases_cover_the_span_and_never_decode_more_than_it(
    one: Any, inside: Any, rate: Any
) -> None:
    timed = timing(one, inside)
    phases = split(one, timed, rate)
    assert timed.attempts >= 1
    assert timed.rule
    if one.end_ns is None:
        assert (timed.grade, phases) == ("D", ())
        return
    edges = [one.start_ns, *(p.end_ns for p in phases)]
    assert [p.start_ns for p in phases] == edges[:-1]
    assert edges[-1] == one.end_ns or (not phases and one.start_ns == one.end_ns)
    assert all(p.start_ns < p.end_ns for p in phases) or one.start_ns == one.end_ns
    if timed.began_ns is not None:
        assert one.start_ns <= timed.began_ns <= one.end_ns
        if timed.grade in ("B", "C"):
            assert all(p.start_ns >= timed.began_ns for p in phases if p.kind == "decode")
    if timed.grade == "D":
        assert {p.kind for p in phases} <= {"other"}


@settings(max_examples=50)
@given(spans())
def test_any_attributes_make_a_task_that_reconciles(one: Any) -> None:
    found = profile_task(trace(one))
    assert found.residual_ns == 0
    assert sum(found.critical_path_ns.values()) == found.task.wall_ns


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_output_tokens_are_a_positive_number_or_unknown(attributes: Any) -> None:
    count = output_tokens(attributes)
    assert count is None or count >= 1


def call(**attributes: Any) -> Any:
    one = span("a", 0, 1000 * MS, name="claude_code.llm_request")
    events = attributes.pop("events", ())
    found = {key.replace("__", "."): value for key, value in attributes.items()}
    return type(one)(**{**one.__dict__, "attributes": found, "events": events})


def tries(*at_ms: Any) -> Any:
    return tuple(SpanEvent("gen_ai.request.attempt", at * MS) for at in at_ms)


def test_one_attempt_is_no_retry() -> None:
    timed = timing(call(ttft_ms=200, attempt=1, events=tries(0)))
    assert (timed.grade, timed.attempts, timed.began_ns, timed.problems) == ("B", 1, None, ())


def test_first_token_that_must_count_from_the_start_does() -> None:
    timed = timing(call(ttft_ms=700, attempt=2, events=tries(0, 400)))
    lengths = [(p.kind, (p.end_ns - p.start_ns) // MS) for p in timed.phases]
    assert lengths == [("other", 400), ("prefill", 300), ("decode", 300)]


def test_first_token_before_the_last_attempt_is_not_used() -> None:
    events = (*tries(0, 400), SpanEvent("First Token Stream Event", 300 * MS))
    timed = timing(call(attempt=2, output_tokens=10, events=events))
    assert timed.grade == "C"
    assert any("outside the span" in note for note in timed.problems)


def test_estimate_fits_into_the_last_attempt() -> None:
    one = call(attempt=2, output_tokens=1000, events=tries(0, 400))
    phases = split(one, timing(one), Fraction(MS))
    assert [(p.kind, (p.end_ns - p.start_ns) // MS) for p in phases] == [
        ("other", 400),
        ("decode", 600),
    ]


@pytest.mark.parametrize("name", ["chat", "llm"])
def test_attempt_of_another_dialect_is_not_a_count(name: Any) -> None:
    one = call(ttft_ms=200, attempt=3)
    assert timing(type(one)(**{**one.__dict__, "name": name})).attempts == 1


def test_events_that_are_fewer_than_the_attempts_do_not_say_when_the_last_began() -> None:
    timed = timing(call(ttft_ms=200, attempt=4, output_tokens=9, events=tries(0, 400)))
    assert (timed.grade, timed.attempts, timed.began_ns) == ("C", 4, None)


def test_first_token_of_the_server_does_not_move_phases_out_of_the_span() -> None:
    timed = timing(
        call(
            gen_ai__latency__time_in_model_prefill=0.3,
            gen_ai__latency__time_in_model_decode=0.6,
            gen_ai__latency__time_to_first_token=0.9,
        )
    )
    lengths = [(p.kind, (p.end_ns - p.start_ns) // MS) for p in timed.phases]
    assert lengths == [("other", 100), ("prefill", 300), ("decode", 600)]


def test_inference_less_decode_is_prefill() -> None:
    timed = timing(
        call(
            gen_ai__latency__time_in_model_inference=0.9, gen_ai__latency__time_in_model_decode=0.6
        )
    )
    assert timed.rule.endswith("time_in_model_inference less gen_ai.latency.time_in_model_decode")
    assert timed.phases[0].end_ns == 300 * MS


def test_request_in_flight_when_another_began_is_no_failed_attempt() -> None:
    one = call(gen_ai__response__time_to_first_chunk=0.2)
    slow = span("b", 0, 900 * MS, http__request__method="POST", http__status_code=500)
    later = span("c", 100 * MS, 900 * MS, http__request__method="POST")
    assert timing(one, (slow, later)).attempts == 1


@pytest.mark.parametrize("status", [429, "429", 503])
def test_refused_call_with_tokens_was_answered_after_all(status: Any) -> None:
    assert timing(call(status_code=status, output_tokens=5)).grade == "C"
    assert timing(call(status_code=status)).grade == "B"
    assert timing(call(http__status_code=status)).grade == "B"
    assert timing(call(http__response__status_code=status)).grade == "B"
    assert timing(call(error__type=str(status))).grade == "B"
    assert timing(call(error__type="timeout")).grade == "D"
