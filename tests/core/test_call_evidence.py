from __future__ import annotations

from span_builders import span, trace

from gatekeeper.core.call_evidence import CallEvidence, evidence_of
from gatekeeper.core.tasks import build_task

MS = 10**6


def test_every_call_with_its_rule_and_what_is_not_known_as_none() -> None:
    task = build_task(
        trace(
            span("a", 0, 100 * MS, kind="model", gatekeeper__route="chat", ttft_ms=40),
            span("b", 100 * MS, 200 * MS, kind="model", output_tokens=2),
            span("c", 200 * MS, 300 * MS, kind="model"),
            span("d", 300 * MS, 400 * MS, kind="decode"),
        )
    )
    assert evidence_of(task) == (
        CallEvidence("a", "a", "chat", None, "B", "Claude Code: ttft_ms", None, 1, 60 * MS),
        CallEvidence(
            "b",
            "b",
            None,
            None,
            "C",
            "Claude Code: output_tokens × time per output token",
            2,
            1,
            42 * MS,
        ),
        CallEvidence(
            "c",
            "c",
            None,
            None,
            "D",
            "neither phases nor a first token nor output tokens",
            None,
            1,
            None,
        ),
        CallEvidence(
            "d", "d", None, None, "A", "spans of their own for prefill and decode", None, 1, None
        ),
    )
