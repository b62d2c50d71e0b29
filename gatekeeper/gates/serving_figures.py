"""Figures with their claims: computed once, through the equation that will verify them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gatekeeper.core.claims import Claim
from gatekeeper.core.equations import EQUATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

__all__ = ["Figures", "Scalar"]

Scalar = str | int | float | None
"""What an equation takes beside its table: JSON scalars."""


class Figures:
    """Evaluates registered equations on evidence tables and keeps a claim for every known value.

    ``gate`` begins the claims' ids.
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame], gate: str = "serving") -> None:
        self.tables = tables
        self._gate = gate
        self.claims: list[Claim] = []

    def add(
        self, name: str, equation: str, table: str, unit: str, **inputs: Scalar
    ) -> float | None:
        """Return ``equation`` of a table and scalars; None, and no claim, where it is unknown."""
        return self._add(name, equation, table, unit=unit, status="measured", inputs=inputs)

    def estimate(
        self, name: str, equation: str, table: str, unit: str, **inputs: Scalar
    ) -> float | None:
        """As ``add``, of a figure that was worked out and not measured."""
        return self._add(name, equation, table, unit=unit, status="estimated", inputs=inputs)

    def _add(
        self,
        name: str,
        equation: str,
        table: str,
        *,
        unit: str,
        status: str,
        inputs: Mapping[str, Scalar],
    ) -> float | None:
        value = EQUATIONS[equation].function(self.tables[table], **inputs)
        if value is None or not math.isfinite(value):
            return None
        self.claims.append(
            Claim(
                id=f"{self._gate}.{name}",
                equation=equation,
                inputs={"table": table, **inputs},
                value=float(value),
                unit=unit,
                status=status,
                source=f"{self._gate} gate, table {table}",
            )
        )
        return float(value)

    def interval(
        self, name: str, equation: str, table: str, unit: str, **inputs: Scalar
    ) -> dict[str, float | None]:
        """Return a centre with its one-sided bounds: three claims."""
        centre = "mean" if equation == "serving.goodput_difference" else "ratio"
        return {
            end: self.add(
                name if end == centre else f"{name}.{end}", equation, table, unit, end=end, **inputs
            )
            for end in (centre, "low", "high")
        }
