"""Inspect AI logs that were really recorded."""

from __future__ import annotations

from typing import Any

import pytest
import trace_corpus
from gatekeeper_adapters.traces.inspect_ai import FORMAT
from inspect_logs import SECOND

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import read_traces


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        # Wall, wait (completed - timestamp - working_time) and tokens of each sample, in order.
        (
            "2025-05-12T20-28-13-04-00_popularity.json",
            [
                (663_021_000, 118_631_625, 2),
                (1_775_690_000, 116_296_666, 2),
                (651_111_000, 129_231_334, 2),
            ],
        ),
        (
            "2025-05-12T20-28-26-04-00_security-guide.json",
            [
                (6_280_752_000, 127_017_292, 309),
                (5_392_303_000, 135_691_875, 256),
                (9_951_311_000, 137_435_541, 468),
            ],
        ),
    ],
)
def test_recorded_logs(file: str, expected: Any) -> None:
    path = trace_corpus.ROOT / "inspect-ai" / file
    profiles = [profile_task(t) for t in read_traces(path.read_bytes(), [FORMAT])]
    assert [
        (
            p.task.wall_ns,
            p.critical_path_ns["queue"],
            sum(call.output_tokens or 0 for _, call in p.task.calls),
        )
        for p in profiles
    ] == expected
    assert all(p.reconciled and p.evidence_grade == "C" for p in profiles)
    assert all(p.task.tokens_agree for p in profiles)


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
def test_recorded_events_whose_calls_never_completed() -> None:
    path = trace_corpus.ROOT / "inspect-ai" / "parallel_spans.json"
    (trace,) = read_traces(path.read_bytes(), [FORMAT])
    profiled = profile_task(trace)
    assert profiled.reconciled
    assert (profiled.task.wall_ns, profiled.evidence_grade) == (6 * SECOND, "D")
    assert profiled.model_calls == 2
