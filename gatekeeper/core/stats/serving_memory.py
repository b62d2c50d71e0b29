"""Equations over the ``memory`` table of a serving run.

One row per block and purpose: ``phase``, ``concurrency``, ``gamma``, ``purpose`` (a field of
``MemoryLedger``), ``bytes``, ``measured`` (False where the engine cannot tell), ``slots`` (sequences
the engine holds KV for), ``predicted`` (bytes foretold before loading, NaN where they were not).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.claims import equation
from gatekeeper.core.memory import PURPOSES, MemoryLedger, active_sequences_lost

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ledger", "memory_bytes", "memory_peak", "memory_predicted", "sequences_lost"]


def ledger(memory: pd.DataFrame) -> MemoryLedger | None:
    """Largest bytes seen of each purpose; None without rows."""
    if memory.empty:
        return None
    most = memory.groupby("purpose")["bytes"].max()
    unknown = memory.loc[~memory["measured"].astype(bool), "purpose"].unique()
    return MemoryLedger(
        **{name: int(most.get(name, 0)) for name in PURPOSES},
        unmeasured=tuple(sorted({*unknown, *(set(PURPOSES) - set(most.index))})),
    )


@equation("serving.memory", table=True)
def memory_bytes(memory: pd.DataFrame, *, purpose: str) -> float | None:
    """Largest bytes seen of one purpose, or of ``total`` or ``speculative``; None if unmeasured."""
    found = ledger(memory)
    if found is None or purpose in found.unmeasured:
        return None
    return float(getattr(found, purpose))


@equation("serving.memory_predicted", table=True)
def memory_predicted(memory: pd.DataFrame, *, purpose: str) -> float | None:
    """Bytes of one purpose, of ``total`` or ``speculative``, foretold before loading.

    None where they were not.
    """
    if "predicted" not in memory.columns or memory["predicted"].isna().any() or memory.empty:
        return None
    foretold = memory.groupby("purpose")["predicted"].max()
    held = MemoryLedger(**{name: int(foretold[name]) for name in PURPOSES}, unmeasured=())
    return float(getattr(held, purpose))


@equation("serving.memory_peak", table=True)
def memory_peak(rounds: pd.DataFrame, *, concurrency: int) -> float | None:
    """Largest memory that any round at a concurrency reported, bytes."""
    chosen = rounds.loc[rounds["concurrency"] == concurrency, "memory_bytes"]
    return float(chosen.max()) if len(chosen) else None


@equation("serving.sequences_lost", table=True)
def sequences_lost(memory: pd.DataFrame, *, capacity_bytes: float | None = None) -> float | None:
    """Reduction in the maximum of active sequences that speculation costs.

    ``capacity_bytes`` defaults to what the run held in all. KV and candidates are taken per slot.
    None where a purpose is unmeasured or the engine holds no KV.
    """
    found = ledger(memory)
    if found is None or not found.complete or not found.target_kv:
        return None
    slots = int(memory["slots"].max())
    return float(
        active_sequences_lost(
            capacity_bytes=found.total if capacity_bytes is None else capacity_bytes,
            fixed_bytes=found.target_weights + found.workspace,
            bytes_per_sequence=found.target_kv / slots,
            speculative_fixed_bytes=found.draft_weights,
            speculative_bytes_per_sequence=(found.draft_kv + found.candidates) / slots,
        )
    )
