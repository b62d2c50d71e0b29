from __future__ import annotations

import csv
import io
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from random_traces import tangles
from span_builders import span, trace

from gatekeeper.core.task_profile import profile_task
from gatekeeper.reports.segments import COLUMNS, segments, segments_csv
from gatekeeper.reports.waterfall import choose, rows

MS = 10**6

SPANS = (
    span("root", 0, 100 * MS),
    span(
        "llm",
        0,
        60 * MS,
        parent="root",
        kind="model",
        name="=chat(1)",
        gen_ai__usage__output_tokens=5,
        langfuse__completion_start_ns=10 * MS,
    ),
    span("side", 20 * MS, 30 * MS, parent="root", kind="tool"),
    span("tool", 65 * MS, 90 * MS, parent="root", kind="tool", name='run, "it"\nnow'),
)


def table(*profiles: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(segments_csv(profiles))))


def test_one_row_for_each_segment_and_each_gap_on_the_path() -> None:
    found = table(("a.json", profile_task(trace(*SPANS))))
    assert [tuple(row[c] for c in COLUMNS[2:]) for row in found] == [
        (
            "llm",
            "segment",
            "prefill",
            "'=chat(1)",
            "0.000000000",
            "0.010000000",
            "yes",
            "0.010000000",
            "B",
        ),
        (
            "llm",
            "segment",
            "decode",
            "'=chat(1)",
            "0.010000000",
            "0.060000000",
            "yes",
            "0.050000000",
            "B",
        ),
        ("side", "segment", "tool", "side", "0.020000000", "0.030000000", "no", "0.000000000", ""),
        ("root", "gap", "other", "root", "0.060000000", "0.065000000", "yes", "0.005000000", ""),
        (
            "tool",
            "segment",
            "tool",
            'run, "it"\nnow',
            "0.065000000",
            "0.090000000",
            "yes",
            "0.025000000",
            "",
        ),
        ("root", "gap", "other", "root", "0.090000000", "0.100000000", "yes", "0.010000000", ""),
    ]
    assert {row["file"] for row in found} == {"a.json"}
    assert {row["task"] for row in found} == {"f" * 32}


def test_a_phase_that_is_a_span_of_its_own_has_the_grade_of_its_call() -> None:
    spans = (
        span("llm", 0, 10, kind="model"),
        span("p", 0, 4, parent="llm", kind="prefill"),
        span("d", 4, 10, parent="llm", kind="decode"),
    )
    found = table(("a", profile_task(trace(*spans))))
    assert [(row["kind"], row["grade"]) for row in found] == [("prefill", "A"), ("decode", "A")]


@settings(max_examples=60, deadline=None)
@given(tangles(most=10))
def test_what_lies_on_the_path_sums_to_the_wall_and_to_each_kind(spans: Any) -> None:
    profile = profile_task(trace(*spans))
    found = segments(profile)
    assert sum(one.on_path_ns for one in found) == profile.task.wall_ns
    for kind, expected in profile.critical_path_ns.items():
        assert sum(one.on_path_ns for one in found if one.kind == kind) == expected
    assert all(0 <= one.on_path_ns <= one.end_ns - one.start_ns for one in found)
    written = table(("x", profile))
    assert sum(Fraction(row["on_path_s"]) for row in written) * 10**9 == profile.task.wall_ns


def test_of_too_many_rows_those_on_the_path_stay_in_order() -> None:
    spans = [span("root", 0, 1000)]
    spans += [span(f"s{i:03d}", i, i + 2, parent="root", kind="tool") for i in range(300)]
    spans.append(span("long", 310, 1000, parent="root", kind="decode"))
    every = rows(profile_task(trace(*spans)))
    shown = choose(every, 5)
    assert len(shown) == 5
    assert [every.index(row) for row in shown] == sorted(every.index(row) for row in shown)
    assert "long" in [row.label for row in shown]
