from __future__ import annotations

from typing import Any

from span_builders import span, trace

from gatekeeper.core.call_evidence import evidence_of
from gatekeeper.core.task_profile import profile_task

MS = 10**6


def evidence(*spans: Any) -> Any:
    found = profile_task(trace(*spans))
    return {one.span_id: one for one in evidence_of(found.task, found.graph, found.path)}


def ms(lengths: Any) -> dict[str, float]:
    """Milliseconds by kind, without the zeros; what is unknown stays None."""
    return {kind: ns and ns / MS for kind, ns in lengths.items() if ns != 0}


def test_every_call_with_its_rule_and_what_is_not_known_as_none() -> None:
    found = evidence(
        span("a", 0, 100 * MS, kind="model", gatekeeper__route="chat", ttft_ms=40),
        span("b", 100 * MS, 200 * MS, kind="model", output_tokens=2),
        span("c", 200 * MS, 300 * MS, kind="model"),
        span("d", 300 * MS, 400 * MS, kind="decode"),
    )
    assert [(one.grade, one.rule, one.output_tokens) for one in found.values()] == [
        ("B", "Claude Code: ttft_ms", None),
        ("C", "Claude Code: output_tokens × time per output token", 2),
        ("D", "neither phases nor a first token nor output tokens", None),
        ("A", "spans of their own for prefill and decode", None),
    ]
    assert (found["a"].route, found["b"].route, found["a"].model) == ("chat", None, None)
    assert [ms(one.segments_ns) for one in found.values()] == [
        {"queue": None, "prefill": 40, "decode": 60},
        {"queue": None, "prefill": 58, "decode": 42},
        {"queue": None, "prefill": None, "decode": None, "other": 100},
        {"decode": 100},
    ]
    assert [one.on_path_ns for one in found.values()] == [one.segments_ns for one in found.values()]
    assert [one.start_ns / MS for one in found.values()] == [0, 100, 200, 300]


def test_only_what_lies_on_the_critical_path_counts_there() -> None:
    found = evidence(
        span("root", 0, 900 * MS),
        span("slow", 0, 900 * MS, parent="root", kind="model", ttft_ms=100),
        span("fast", 0, 300 * MS, parent="root", kind="model", ttft_ms=100),
    )
    assert ms(found["fast"].segments_ns) == {"queue": None, "prefill": 100, "decode": 200}
    assert ms(found["fast"].on_path_ns) == {"queue": None}
    assert ms(found["slow"].on_path_ns) == {"queue": None, "prefill": 100, "decode": 800}


def test_phases_below_a_call_are_its_own_and_tools_below_it_are_not() -> None:
    found = evidence(
        span("call", 0, 500 * MS, kind="model", output_tokens=9),
        span("wait", 0, 100 * MS, parent="call", kind="queue"),
        span("fill", 100 * MS, 200 * MS, parent="call", kind="prefill"),
        span("write", 200 * MS, 500 * MS, parent="call", kind="decode"),
        span("tool", 300 * MS, 400 * MS, parent="call", kind="tool"),
    )
    assert list(found) == ["call"]
    assert ms(found["call"].segments_ns) == {"queue": 100, "prefill": 100, "decode": 300}


def test_refused_call_decoded_nothing_and_an_unfinished_one_has_no_length() -> None:
    found = evidence(
        span("refused", 0, 100 * MS, kind="model", http__response__status_code=429),
        span("open", 100 * MS, None, kind="model"),
        span("end", 100 * MS, 200 * MS),
    )
    assert ms(found["refused"].segments_ns) == {"other": 100}
    assert (found["refused"].wall_ns, found["open"].wall_ns) == (100 * MS, None)


def test_task_without_calls_has_no_rows() -> None:
    assert evidence(span("tool", 0, 100, kind="tool")) == {}
