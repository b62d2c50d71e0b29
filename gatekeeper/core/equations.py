"""Every equation of the ledger: importing this module registers them all."""

from __future__ import annotations

from gatekeeper.core import (
    abandonment,
    acceptance,
    joint_ratios,
    latency,
    memory,
    outcome_kinds,
    pricing_change,
    pricing_latency,
    pricing_terms,
    progress,
    task_savings,
    task_worth,
    value,
)
from gatekeeper.core.claims import EQUATIONS, recompute, verify
from gatekeeper.core.stats import (
    eprocess,
    gate_cost,
    greedy,
    outcome_pairs,
    power,
    prediction,
    server_drafts,
    server_logprobs,
    server_samples,
    server_texts,
    serving_blocks,
    serving_memory,
    serving_rounds,
    tolerance,
)

__all__ = ["EQUATIONS", "MODULES", "recompute", "verify"]

MODULES = (
    abandonment,
    acceptance,
    joint_ratios,
    latency,
    memory,
    outcome_kinds,
    pricing_change,
    pricing_latency,
    pricing_terms,
    progress,
    task_savings,
    task_worth,
    value,
    eprocess,
    gate_cost,
    greedy,
    outcome_pairs,
    power,
    prediction,
    server_drafts,
    server_logprobs,
    server_samples,
    server_texts,
    serving_blocks,
    serving_memory,
    serving_rounds,
    tolerance,
)
"""Modules that register equations when they are imported."""
