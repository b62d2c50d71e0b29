"""What no dialect owns: kinds named by hand, requests below a call, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from dialect_tasks import calls, only_call, path, profiled
from otlp_documents import span


def test_segment_kind_named_by_the_application_is_the_last_word() -> None:
    found = profiled(
        span(1, "ask", 0, 500, gatekeeper__segment__kind="human_wait", gen_ai__tool__name="ask"),
        span(2, "INSERT", 500, 600, db__system__name="sqlite"),
        span(3, "wait for approval", 600, 700),
        span(4, "verify answer", 700, 800),
    )
    assert path(found) == {"human_wait": 600, "persistence": 100, "verification": 100}


CHAT = {"gen_ai__operation__name": "chat", "gen_ai__usage__output_tokens": 20}


@pytest.mark.parametrize(
    "resend", ["http.request.resend_count", "http.resend_count", "http.retry_count"]
)
def test_request_sent_again_below_a_call_is_an_attempt(resend: Any) -> None:
    found = profiled(
        span(1, "chat", 0, 1000, gen_ai__response__time_to_first_chunk=0.2, **CHAT),
        span(2, "POST", 0, 300, parent=1, http__request__method="POST"),
        span(3, "POST", 400, 1000, parent=1, http__request__method="POST", **{resend: 1}),
    )
    call = only_call(found)
    assert (call.grade, call.attempts) == ("B", 2)
    assert path(found) == {"other": 400, "prefill": 200, "decode": 400}


def test_failed_request_below_a_call_is_an_attempt() -> None:
    found = profiled(
        span(1, "chat", 0, 1000, gen_ai__response__time_to_first_chunk=0.7, **CHAT),
        span(
            2,
            "POST",
            0,
            300,
            parent=1,
            http__request__method="POST",
            http__response__status_code=503,
        ),
        span(
            3,
            "POST",
            400,
            1000,
            parent=1,
            http__request__method="POST",
            http__response__status_code=200,
        ),
    )
    # 0.7 s after the second attempt the call had ended: the time counts from the first.
    assert only_call(found).attempts == 2
    assert path(found) == {"other": 400, "prefill": 300, "decode": 300}


def test_refused_call_is_no_unknown_decode() -> None:
    found = profiled(
        span(1, "chat", 0, 200, gen_ai__operation__name="chat", http__response__status_code=429),
        span(2, "chat", 200, 1000, gen_ai__response__time_to_first_chunk=0.2, **CHAT),
    )
    refused, answered = calls(found)
    assert refused.rule == "refused with status 429: nothing was decoded"
    assert (refused.grade, answered.grade, found.evidence_grade) == ("B", "B", "B")
    assert path(found) == {"other": 200, "prefill": 200, "decode": 600}


def test_timed_out_call_may_have_decoded() -> None:
    found = profiled(
        span(1, "chat", 0, 200, gen_ai__operation__name="chat", http__response__status_code=504)
    )
    assert found.evidence_grade == "D"
