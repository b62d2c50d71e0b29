"""Spans of inference servers and of the proxy before them."""

from __future__ import annotations

from typing import Any

import otlp_documents as otlp
import pytest
from dialect_tasks import MS, calls, only_call, path, profiled
from otlp_documents import span

VLLM: dict[str, Any] = {
    "gen_ai__latency__time_in_queue": 0.1,
    "gen_ai__latency__time_in_model_prefill": 0.2,
    "gen_ai__latency__time_in_model_decode": 0.6,
    "gen_ai__latency__time_in_model_inference": 0.8,
    "gen_ai__latency__time_to_first_token": 0.34,
    "gen_ai__latency__e2e": 1.0,
    "gen_ai__usage__prompt_tokens": 900,
    "gen_ai__usage__completion_tokens": 30,
}


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
def test_vllm_phases_become_segments_and_the_rest_stays_unattributed(contain: Any) -> None:
    found = profiled(span(1, "llm_request", 0, 1000, **VLLM), contain=contain)
    call = only_call(found)
    assert call.grade == "A"
    assert call.rule == (
        "vLLM, SGLang: gen_ai.latency.time_in_model_prefill and gen_ai.latency.time_in_model_decode"
    )
    # 40 ms before the queue, since the first token came after 340 and not 300; 60 ms at the end.
    assert [(p.kind, (p.end_ns - p.start_ns) / MS) for p in call.phases] == [
        ("other", 40),
        ("queue", 100),
        ("prefill", 200),
        ("decode", 600),
        ("other", 60),
    ]


def test_sglang_writes_no_queue_and_counts_from_its_dispatch() -> None:
    found = profiled(
        span(
            1,
            "Req 7",
            0,
            1000,
            gen_ai__latency__time_to_first_token=0.5,
            gen_ai__latency__e2e=1.0,
            gen_ai__latency__time_in_model_prefill=0.4,
            gen_ai__latency__time_in_model_decode=0.5,
            gen_ai__latency__time_in_model_inference=0.9,
        ),
        span(2, "prefill_forward", 100, 500, parent=1),  # a slice of the scheduler: detail
        span(3, "decode_loop", 500, 900, parent=1),
    )
    assert only_call(found).grade == "A"
    assert path(found) == {"other": 100, "prefill": 400, "decode": 500}
    assert found.saving.value == 250 * MS


def test_server_that_only_prefills_decodes_nothing() -> None:
    found = profiled(
        span(
            1,
            "Req 8",
            0,
            500,
            gen_ai__latency__time_to_first_token=0.5,
            gen_ai__latency__time_in_model_prefill=0.4,
        )
    )
    assert only_call(found).rule.endswith("of a server that only prefills")
    assert path(found) == {"prefill": 400, "other": 100}


def test_prefill_alone_is_no_proof_that_many_tokens_took_no_time() -> None:
    found = profiled(
        span(
            1,
            "Req 8",
            0,
            500,
            gen_ai__latency__time_in_model_prefill=0.4,
            gen_ai__usage__completion_tokens=10,
        )
    )
    assert only_call(found).grade == "C"


def test_clients_span_around_the_servers_gives_way_to_it() -> None:
    found = profiled(
        span(
            1,
            "chat small",
            0,
            1200,
            gen_ai__operation__name="chat",
            gen_ai__request__model="small",
            gen_ai__response__time_to_first_chunk=0.5,
            gen_ai__usage__output_tokens=30,
        ),
        span(2, "llm_request", 100, 1100, parent=1, **VLLM),
    )
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("A", "small", 30)
    assert path(found)["decode"] == 600


STAGE = {"llm_d__pd_proxy__request_id": "r1"}


@pytest.mark.parametrize("contain", otlp.CONTAINERS)
@pytest.mark.parametrize("prefix", ["llm_d.pd_proxy.", ""], ids=["older", "newer"])
def test_llm_d_decode_outlives_the_prefill_it_is_a_child_of(prefix: Any, contain: Any) -> None:
    found = profiled(
        span(1, f"{prefix}prefill", 0, 300, **STAGE),
        span(2, f"{prefix}decode", 320, 1000, parent=1, **STAGE),
        contain=contain,
    )
    assert path(found) == {"prefill": 300, "decode": 680, "other": 20}
    assert only_call(found).grade == "A"
    assert found.saving.value == 340 * MS


def test_spans_that_are_merely_called_decode_are_not_llm_ds() -> None:
    found = profiled(span(1, "decode", 0, 300), span(2, "prefill", 300, 400))
    assert (path(found), calls(found)) == ({"other": 400}, [])


def test_llm_d_counts_one_call_whatever_the_two_servers_write_below() -> None:
    found = profiled(
        span(1, "llm_d.pd_proxy.POST /v1/chat/completions", 0, 1010),
        span(2, "forward_request", 0, 1010, parent=1),
        span(3, "prefill", 0, 300, parent=2, **STAGE),
        span(
            4,
            "llm_request",
            5,
            290,
            parent=3,
            gen_ai__response__model="small",
            **{**VLLM, "gen_ai__usage__completion_tokens": 1},
        ),
        span(5, "decode", 310, 1000, parent=3, **STAGE),
        # By its own clock it ends after the proxy that waited for it.
        span(6, "llm_request", 330, 1200, parent=5, gen_ai__response__model="small", **VLLM),
    )
    call = only_call(found)
    assert (call.grade, call.model, call.output_tokens) == ("A", "small", 30)
    assert path(found)["decode"] == 690
    assert found.saving.value == 345 * MS


def test_llm_d_stages_sent_off_together_decode_only_after_the_prefill() -> None:
    both = {**STAGE, "llm_d__pd_proxy__parallel_dispatch": True}
    found = profiled(
        span(1, "llm_d.pd_proxy.request", 0, 1000),
        span(2, "prefill", 0, 400, parent=1, **both),
        span(3, "decode", 10, 1000, parent=1, **both),
    )
    assert len(calls(found)) == 1
    assert found.segments_ns["queue"] == 390 * MS
    assert found.segments_ns["decode"] == 600 * MS
    assert found.saving.value == 300 * MS
