"""Metrics of four engines as they write them, with the names and labels that each has.

SGLang does not run here: its names are those of its source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.worker.scrape import samples

if TYPE_CHECKING:
    from gatekeeper.core.watch_metrics import Sample


def read(text: str) -> list[Sample]:
    return list(samples(text))


def vllm(
    *,
    drafts: object = 100,
    drafted: object = 400,
    accepted: object = 240,
    memory: object = 0.31,
    waiting: object = 0,
    model: str = "m",
) -> str:
    at = f'{{engine="0",model_name="{model}"}}'
    spec = "vllm:spec_decode_num_"
    return f"""# HELP {spec}drafts_total Number of spec decoding drafts.
# TYPE {spec}drafts_total counter
{spec}drafts_total{at} {drafts}
# HELP {spec}drafts_created Number of spec decoding drafts.
# TYPE {spec}drafts_created gauge
{spec}drafts_created{at} 1.7e+09
# TYPE {spec}draft_tokens_total counter
{spec}draft_tokens_total{at} {drafted}
# TYPE {spec}accepted_tokens_total counter
{spec}accepted_tokens_total{at} {accepted}
# TYPE {spec}accepted_tokens_per_pos_total counter
{spec}accepted_tokens_per_pos_total{{engine="0",model_name="{model}",position="0"}} {accepted}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{at} {memory}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{at} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{at} {waiting}
"""


def llamacpp(*, drafts: object = 100, drafted: object = 400, accepted: object = 240) -> str:
    spec = "llamacpp:spec_decode_num_"
    return f"""# HELP {spec}drafts_total Number of drafts.
# TYPE {spec}drafts_total counter
{spec}drafts_total {drafts}
# TYPE {spec}draft_tokens_total counter
{spec}draft_tokens_total {drafted}
# TYPE {spec}accepted_tokens_total counter
{spec}accepted_tokens_total {accepted}
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
"""


def sglang(*, generated: object = 1000, length: object = 2.5, usage: object = 0.4) -> str:
    at = '{model_name="m",tp_rank="0"}'
    return f"""# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{model_name="m"}} {generated}
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{at} {length}
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{at} 0.62
# TYPE sglang:token_usage gauge
sglang:token_usage{at} {usage}
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{at} 4.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{at} 1.0
"""
