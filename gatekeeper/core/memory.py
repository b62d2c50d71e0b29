"""The memory ledger of one engine: who holds which bytes, and what speculation displaces."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from gatekeeper.core.claims import equation
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MemoryLedger", "active_sequences_lost", "max_active_sequences"]


@dataclass(frozen=True)
class MemoryLedger:
    """Bytes held at one moment, by purpose; ledgers of separate devices add with ``+``.

    ``candidates`` are proposed tokens and trees with their probabilities, ``workspace`` the
    activations and scratch of verification. A purpose that the engine cannot measure is named in
    ``unmeasured`` and counts as 0 bytes there, which makes ``total`` a lower bound.
    """

    target_weights: int
    target_kv: int
    draft_weights: int
    draft_kv: int
    candidates: int
    workspace: int
    unmeasured: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in PURPOSES:
            value = getattr(self, name)
            if value < 0:
                raise InputError(
                    "is negative", field=f"memory.{name}", value=value, remedy="give bytes held"
                )
        for name in self.unmeasured:
            if name not in PURPOSES:
                raise InputError(
                    "is not a purpose of memory",
                    field="memory.unmeasured",
                    value=name,
                    remedy=f"use {', '.join(PURPOSES)}",
                )

    @property
    def total(self) -> int:
        """Sum over all purposes; a lower bound unless ``complete``."""
        return sum(getattr(self, name) for name in PURPOSES)

    @property
    def speculative(self) -> int:
        """Bytes that exist only because of speculation: draft weights and KV, candidates."""
        return self.draft_weights + self.draft_kv + self.candidates

    @property
    def complete(self) -> bool:
        """Whether every purpose was measured."""
        return not self.unmeasured

    def __add__(self, other: MemoryLedger) -> MemoryLedger:
        """Purpose by purpose; what either side could not measure stays unmeasured."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in PURPOSES}
        return MemoryLedger(**sums, unmeasured=tuple(sorted({*self.unmeasured, *other.unmeasured})))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form with ``total``."""
        return {**asdict(self), "unmeasured": list(self.unmeasured), "total": self.total}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> MemoryLedger:
        """Read ``to_dict`` back; ``total`` is derived and ignored."""
        return cls(
            **{name: int(document[name]) for name in PURPOSES},
            unmeasured=tuple(document.get("unmeasured", ())),
        )


PURPOSES = tuple(f.name for f in fields(MemoryLedger) if f.name != "unmeasured")
"""The purposes in order of the ledger."""


@equation("memory.max_active_sequences")
def max_active_sequences(
    capacity_bytes: float, fixed_bytes: float, bytes_per_sequence: float
) -> int:
    """Sequences that fit beside the fixed part: floor((capacity − fixed) / per sequence), at least 0.

    Raises:
        InputError: ``bytes_per_sequence`` is not positive.
    """
    if bytes_per_sequence <= 0:
        raise InputError(
            "must be positive",
            field="bytes_per_sequence",
            value=bytes_per_sequence,
            remedy="give KV bytes of one full sequence",
        )
    return max(0, int((capacity_bytes - fixed_bytes) // bytes_per_sequence))


@equation("memory.active_sequences_lost")
def active_sequences_lost(
    capacity_bytes: float,
    fixed_bytes: float,
    bytes_per_sequence: float,
    speculative_fixed_bytes: float,
    speculative_bytes_per_sequence: float,
) -> int:
    """Reduction in the maximum of active sequences that speculation costs.

    ``fixed_bytes`` and ``bytes_per_sequence`` are those of ordinary decoding (weights and
    workspace; target KV); the ``speculative_`` ones are what speculation adds to each (draft
    weights; draft KV and candidates).
    """
    ordinary = max_active_sequences(capacity_bytes, fixed_bytes, bytes_per_sequence)
    speculative = max_active_sequences(
        capacity_bytes,
        fixed_bytes + speculative_fixed_bytes,
        bytes_per_sequence + speculative_bytes_per_sequence,
    )
    return ordinary - speculative
