"""Outcome check of recorded pairs: the gate's statistics on pairs from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.core.stats import outcome_pairs
from gatekeeper.core.stats.noninferiority import minimal_pairs
from gatekeeper.core.verdicts import Outcome, worst
from gatekeeper.errors import InputError
from gatekeeper.gates.outcome import judge_cost, say_success

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["check"]

_LARGEST_ALPHA = 0.5
_PROOF = 0.001


def check(
    pairs: pd.DataFrame, *, margin: float, alpha: float, max_cost_ratio: float | None = None
) -> dict[str, Any]:
    """Judge pairs; the answer is JSON-able, unknown figures are None.

    ``pairs`` has ``task``, ``baseline_success``, ``candidate_success``, ``baseline_cost``,
    ``candidate_cost`` and optionally ``cluster`` (else every task stands alone); a task's id occurs
    once. Without ``max_cost_ratio`` cost fails only where the candidate is shown, with error .001,
    to cost more per success.

    Raises:
        InputError: no pairs, pairs no verdict may rest on, or margin or alpha out of range.
    """
    if not 0 < alpha < _LARGEST_ALPHA:
        raise InputError("must lie in (0, 0.5)", field="alpha", value=alpha, remedy="use 0.05")
    least = minimal_pairs(margin, alpha)
    if pairs.empty:
        raise InputError("has no pairs", field="pairs", remedy="record at least one task")
    table = pairs.assign(sample=0, kind="")
    if "cluster" not in table.columns:
        table = table.assign(cluster=table.get("task"))
    outcome_pairs.check_pairs(table)
    won = outcome_pairs.success(table, margin=margin, alpha=alpha)
    worth = outcome_pairs.effective(table, alpha=alpha)
    ratio = outcome_pairs.cost_ratio(table, alpha=alpha)
    if max_cost_ratio is None:
        proof = outcome_pairs.cost_ratio(table, alpha=_PROOF)
        cost_outcome, cost_detail = _not_shown_worse(ratio, proof)
    else:
        cost_outcome, cost_detail = judge_cost(ratio, limit=max_cost_ratio)
    needed = outcome_pairs.needed(table, margin=margin, alpha=alpha)
    counts = {"b": _count(table, "b"), "c": _count(table, "c"), "n": len(table)}
    bounds = (ratio.low, ratio.high)
    return {
        "outcome": str(worst([won.outcome, cost_outcome])),
        **counts,
        "difference": outcome_pairs.difference(table),
        "interval": None if won.interval is None else list(won.interval),
        "margin": margin,
        "alpha": alpha,
        "pairs_needed": None if needed is None else int(needed),
        "minimal_pairs": least,
        "clusters": worth.clusters,
        "design_effect": worth.design_effect,
        "cost_ratio": ratio.ratio,
        "cost_ratio_interval": None if None in bounds else list(bounds),
        "max_cost_ratio": max_cost_ratio,
        "parts": [
            {"name": "success", "outcome": str(won.outcome), "detail": say_success(won, counts)},
            {"name": "cost", "outcome": str(cost_outcome), "detail": cost_detail},
        ],
    }


def _not_shown_worse(
    found: outcome_pairs.CostRatio, proof: outcome_pairs.CostRatio
) -> tuple[Outcome, str]:
    """Without a limit: FAIL where the candidate costs more beyond doubt."""
    if found.ratio is None or proof.low is None:
        return Outcome.INCONCLUSIVE, f"no cost per success: {found.problem}"
    said = f"cost per success × {found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}], no limit set"
    if proof.low > 1:
        return Outcome.FAIL, f"{said}; above 1 with error {_PROOF:g}"
    return Outcome.PASS, said


def _count(table: pd.DataFrame, of: str) -> int:
    return int(outcome_pairs.count(table, of=of) or 0)
