"""Every equation of the ledger: importing this module registers them all."""

from __future__ import annotations

from gatekeeper.core import acceptance, latency, memory, progress, value
from gatekeeper.core.claims import EQUATIONS, recompute, verify
from gatekeeper.core.stats import (
    eprocess,
    greedy,
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
    progress,
    value,
    eprocess,
    greedy,
    serving_blocks,
    serving_memory,
    serving_rounds,
    tolerance,
)
"""Modules that register equations when they are imported."""
