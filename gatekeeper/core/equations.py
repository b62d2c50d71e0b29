"""Every equation of the ledger: importing this module registers them all."""

from __future__ import annotations

from gatekeeper.core import (
    acceptance,
    latency,
    memory,
    pricing_change,
    pricing_terms,
    progress,
    task_savings,
    value,
)
from gatekeeper.core.claims import EQUATIONS, recompute, verify
from gatekeeper.core.stats import (
    eprocess,
    greedy,
    outcome_pairs,
    power,
    prediction,
    server_drafts,
    server_texts,
    serving_blocks,
    serving_memory,
    serving_rounds,
    tolerance,
)

__all__ = ["EQUATIONS", "MODULES", "recompute", "verify"]

MODULES = (
    acceptance,
    latency,
    memory,
    pricing_change,
    pricing_terms,
    progress,
    task_savings,
    value,
    eprocess,
    greedy,
    outcome_pairs,
    power,
    prediction,
    server_drafts,
    server_texts,
    serving_blocks,
    serving_memory,
    serving_rounds,
    tolerance,
)
"""Modules that register equations when they are imported."""
