"""What a gate run leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.decoding import Rates
    from gatekeeper.core.verdicts import GateResult

__all__ = ["Cancelled", "Measured"]


class Cancelled(Exception):
    """The run was cancelled by someone; raised to leave the measurement."""


@dataclass(frozen=True)
class Measured:
    """Verdict, Parquet bytes by table name, acceptance counts as JSON, and speeds where measured."""

    result: GateResult
    files: Mapping[str, bytes]
    acceptance: Sequence[Mapping[str, Any]] = ()
    rates: Rates | None = None
