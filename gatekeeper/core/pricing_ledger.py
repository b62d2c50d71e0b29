"""Figures of a pricing, each computed through the equation that will verify it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

from gatekeeper.core.claims import EQUATIONS, Claim
from gatekeeper.core.task_savings import TaskCurves, read_curves, repeated
from gatekeeper.core.value import ValueInterval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

_T = TypeVar("_T")

__all__ = ["ENDS", "FLIPPED", "PricingLedger"]

ENDS = ("value", "low", "high")
FLIPPED = {"value": "value", "low": "high", "high": "low"}
"""End of what is subtracted, by end of the difference."""


class PricingLedger:
    """Evaluates registered equations on curves and prices and keeps a claim for every value.

    Args:
        route: the route priced; claims are ``value/<route>/<name>``.
        curves: table of ``core.task_savings``.
        evidence: sha256 of the file that keeps the curves; None where there are no tasks.
    """

    def __init__(self, route: str, curves: pd.DataFrame, evidence: str | None) -> None:
        self.route = route
        self.curves = curves
        self.claims: list[Claim] = []
        self.needs: list[str] = []
        self._evidence = evidence
        self._known: dict[str, Any] = {}
        self._keeps = True

    def scratch(self, times: int = 1) -> PricingLedger:
        """Return a ledger to try other inputs on: it keeps no claim and reads no table twice.

        With ``times`` above 1 it has as many times the tasks, each like one that is here.
        """
        other = PricingLedger(self.route, self.curves, self._evidence)
        other._known = self._known
        other._keeps = False
        if times > 1:
            tasks, other._known = self.tasks, {}
            other.once("tasks", lambda: None if tasks is None else repeated(tasks, times))
        return other

    def once(self, key: object, compute: Callable[[], _T]) -> _T:
        """Return what ``compute`` gives, computed once for a JSON-able ``key`` on these curves."""
        name = json.dumps(key, sort_keys=True)
        if name not in self._known:
            self._known[name] = compute()
        known: _T = self._known[name]
        return known

    @property
    def tasks(self) -> TaskCurves | None:
        """The curves as arrays; None where no task is priced."""
        return self.once("tasks", lambda: read_curves(self.curves) if len(self.curves) else None)

    def add(self, name: str, equation: str, unit: str, /, **inputs: Any) -> float | None:  # noqa: ANN401 - JSON scalars and lists
        """Return an equation's value; None, and no claim, where it is unknown."""
        known = EQUATIONS[equation]
        if known.table and self._evidence is None:
            return None
        if known.table:
            value = self.once([equation, inputs], lambda: known.function(self.curves, **inputs))
        else:
            value = known.function(**inputs)
        if value is None or not math.isfinite(value):
            return None
        return self.note(name, equation, unit, float(value), **inputs)

    def note(self, name: str, equation: str, unit: str, value: float, /, **inputs: Any) -> float:  # noqa: ANN401 - as in ``add``
        """Keep the claim of a value that the equation's own function has given already."""
        if not self._keeps:
            return value
        if EQUATIONS[equation].table:
            inputs = {"table": "curves", "evidence": self._evidence, **inputs}
        self.claims.append(
            Claim(
                id=f"value/{self.route}/{name}",
                equation=equation,
                inputs=inputs,
                value=value,
                unit=unit,
                status="estimated",
                source=f"pricing of route {self.route}",
            )
        )
        return value

    def ends(
        self, name: str, equation: str, unit: str, ends: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, float] | None:
        """Return value, low and high of one figure, each from its own inputs; None where unknown.

        Claims are ``name``, ``name.low`` and ``name.high``.
        """
        found = {
            end: self.add(name if end == "value" else f"{name}.{end}", equation, unit, **ends[end])
            for end in ENDS
        }
        known = {end: value for end, value in found.items() if value is not None}
        return known if len(known) == len(ENDS) else None

    def money(
        self, name: str, equation: str, currency: str, ends: Mapping[str, Mapping[str, Any]]
    ) -> ValueInterval | None:
        """As ``ends``, in money per task."""
        found = self.ends(name, equation, f"{currency} per task", ends)
        return None if found is None else ValueInterval(**found, currency=currency)

    def need(self, sentence: str) -> None:
        """Note what would make an unknown figure known; return nothing, as the figure is."""
        if sentence not in self.needs:
            self.needs.append(sentence)
