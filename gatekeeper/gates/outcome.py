"""The outcome gate: do tasks still succeed, and at what cost per success?

``plan`` → run its blocks → ``Plan.pairs`` → ``evaluate``. Two parts, both mandatory: ``success`` is
non-inferior within the margin, ``cost`` per successful outcome within its limit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from scipy import stats

from gatekeeper.core.documents import counted, signed
from gatekeeper.core.stats.noninferiority import minimal_pairs
from gatekeeper.core.stats.outcome_pairs import (
    ARMS,
    BASELINE,
    CANDIDATE,
    check_pairs,
    cost_ratio,
    success,
)
from gatekeeper.core.verdicts import GateResult, Outcome, Part, worst
from gatekeeper.gates.outcome_plan import Answer, Attempt, Block, Plan, plan
from gatekeeper.gates.serving_figures import Figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from gatekeeper.core.policy_schema import OutcomeBudget
    from gatekeeper.core.stats.noninferiority import NonInferiority
    from gatekeeper.core.stats.outcome_pairs import CostRatio

__all__ = [
    "TABLES",
    "Answer",
    "Attempt",
    "Block",
    "Plan",
    "evaluate",
    "judge_cost",
    "plan",
    "say_success",
]

_POWER = 0.9
"""As in the plan: chance that so many pairs settle the cost."""

_MOST_TIMES = 100.0
"""Nobody runs more than so many times the pairs."""

_ON_OWN_TASKS = (
    "that is engine time on the gate's own tasks, the same for every route, so it may rise where "
    "this route's own text decodes faster"
)
"""Said with a cost: a reader sees the serving gate's speed-up on the route's text beside it."""

TABLES = ("pairs",)
"""Evidence tables, enough to recompute every claim."""


def evaluate(budget: OutcomeBudget, tables: Mapping[str, pd.DataFrame]) -> GateResult:
    """Judge success and cost on the table ``pairs`` alone: the worse of the two parts.

    Raises:
        InputError: the table is not one of pairs (see ``check_pairs``).
    """
    table = tables["pairs"]
    check_pairs(table)
    figures = Figures(tables, "outcome")
    summary = _summary(budget, figures)
    won = success(table, margin=budget.margin, alpha=budget.alpha)
    ratio = cost_ratio(table, alpha=budget.alpha)
    cost_outcome, cost_detail = judge_cost(ratio, limit=budget.max_cost_ratio)
    parts = (
        Part("success", won.outcome, say_success(won, summary)),
        Part("cost", cost_outcome, cost_detail),
    )
    outcome = worst(part.outcome for part in parts)
    needed = _still_needed(parts, summary)
    return GateResult(
        gate="outcome",
        outcome=outcome,
        parts=parts,
        summary=summary,
        claims=tuple(figures.claims),
        still_needed=needed if outcome is Outcome.INCONCLUSIVE else None,
    )


def judge_cost(found: CostRatio, *, limit: float) -> tuple[Outcome, str]:
    """PASS when the upper bound is within ``limit``, FAIL when the lower is above it.

    No ratio, for want of a success in an arm, is INCONCLUSIVE.
    """
    if found.ratio is None:
        return Outcome.INCONCLUSIVE, f"no cost per success: {found.problem}"
    if found.low is None or found.high is None:
        return Outcome.INCONCLUSIVE, f"no interval of the cost per success: {found.problem}"
    said = f"cost per success × {found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"
    said += f", limit {limit:g}"
    if found.high <= limit:
        return Outcome.PASS, said
    return (Outcome.FAIL if found.low > limit else Outcome.INCONCLUSIVE), said


def say_success(found: NonInferiority, summary: Mapping[str, Any]) -> str:
    """Put the success part into one sentence; ``summary`` has the counts of the pairs themselves."""
    if found.interval is None or found.difference is None:
        return "pairs of at least two clusters are needed"
    low, high = found.interval
    said = (
        f"difference {signed(found.difference, 4)} [{signed(low, 4)}, {signed(high, 4)}], "
        f"margin −{found.margin:g}; "
        f"b={summary['b']}, c={summary['c']} of {summary['n']} pairs"
    )
    if found.n < found.minimal_pairs:
        said += f", worth {found.n:.0f} of the {found.minimal_pairs} that could pass"
    return said


def _summary(budget: OutcomeBudget, figures: Figures) -> dict[str, Any]:
    """JSON-able account; every figure in it has its claim."""
    table = figures.tables["pairs"]
    alpha = {"alpha": budget.alpha}

    def add(name: str, equation: str, unit: str, **inputs: str | float) -> float | None:
        return figures.add(name, f"outcome.{equation}", "pairs", unit, **inputs)

    def whole(name: str, of: str, unit: str = "pairs") -> int:
        return int(add(name, "count", unit, of=of) or 0)

    def whole_of_kind(kind: str) -> int:
        return int(add(f"pairs.{kind}", "pairs_of_kind", "pairs", kind=kind) or 0)

    def ends(name: str, equation: str, unit: str) -> list[float | None]:
        found = [add(f"{name}.{e}", equation, unit, end=e, **alpha) for e in ("low", "high")]
        return found if None not in found else []

    needed = add("pairs_needed", "pairs_needed", "pairs", margin=budget.margin, **alpha)
    cost = {arm: add(f"cost.{arm}", "cost_per_success", "s", arm=arm) for arm in ARMS}
    ratio = {
        end: add(f"cost_ratio.{end}", "cost_ratio", "ratio", end=end, **alpha)
        for end in ("ratio", "low", "high")
    }
    return {
        "b": whole("b", "b"),
        "c": whole("c", "c"),
        "n": whole("n", "pairs"),
        "tasks": whole("tasks", "tasks", "tasks"),
        "samples": whole("samples", "samples", "samples per task"),
        "clusters": whole("clusters", "clusters", "clusters"),
        "difference": add("difference", "difference", "share"),
        "interval": ends("interval", "interval", "share") or None,
        "margin": budget.margin,
        "alpha": budget.alpha,
        "pairs_needed": None if needed is None else int(needed),
        "minimal_pairs": minimal_pairs(budget.margin, budget.alpha),
        "design_effect": add("design_effect", "design_effect", "ratio", **alpha),
        "effective_pairs": add("effective_pairs", "effective_pairs", "pairs", **alpha),
        "baseline_success": add("success.baseline", "success_rate", "share", arm=BASELINE),
        "candidate_success": add("success.candidate", "success_rate", "share", arm=CANDIDATE),
        "kinds": [
            {
                "kind": kind,
                "pairs": whole_of_kind(kind),
                **{
                    arm: add(f"success.{kind}.{arm}", "success_rate", "share", arm=arm, kind=kind)
                    for arm in ARMS
                },
            }
            for kind in sorted(table["kind"].unique())
        ],
        "cost_per_success": {**cost, **ratio, "limit": budget.max_cost_ratio, "unit": "s"},
        "sampling": budget.sampling.label,
        **_constants(table),
    }


def _constants(table: pd.DataFrame) -> dict[str, Any]:
    """What the whole run had in common; None without a row."""
    if table.empty:
        return {"gamma": None, "concurrency": None, "suite": None}
    row = table.iloc[0]
    return {
        "gamma": int(row["gamma"]),
        "concurrency": int(row["concurrency"]),
        "suite": str(row["suite"]),
    }


def _still_needed(parts: tuple[Part, ...], summary: Mapping[str, Any]) -> str:
    by_name = {part.name: part for part in parts}
    wanted = []
    if by_name["success"].outcome is Outcome.INCONCLUSIVE:
        pairs = summary["pairs_needed"] or summary["minimal_pairs"]
        if pairs > summary["n"]:
            wanted.append(f"about {counted(pairs)} pairs, {counted(summary['n'])} were run")
        else:
            wanted.append(f"a look at {by_name['success'].detail}")
    if by_name["cost"].outcome is Outcome.INCONCLUSIVE:
        detail, how_many = by_name["cost"].detail, _pairs_for_cost(summary)
        if summary["cost_per_success"]["ratio"] is not None:
            detail += f"; {_ON_OWN_TASKS}"
        wanted.append(f"a settled cost ({detail}): {how_many}")
    return "; ".join(wanted)


def _pairs_for_cost(summary: Mapping[str, Any]) -> str:
    """How many pairs in all would settle the cost, if its ratio and its spread stay as seen.

    An interval on the log scale narrows with the square root of the pairs: as many as let its end
    reach the limit with power `_POWER`.
    """
    cost = summary["cost_per_success"]
    ratio, limit = cost["ratio"], cost["limit"]
    if ratio is None or cost["low"] is None or cost["high"] is None:
        return "how many pairs that takes cannot be said without an interval of the cost"
    inside = ratio <= limit
    room = abs(math.log(limit / ratio))
    half = abs(math.log((cost["high"] if inside else cost["low"]) / ratio))
    quantile = float(stats.norm.isf(summary["alpha"]))
    wider = (quantile + float(stats.norm.ppf(_POWER))) / quantile
    if room * math.sqrt(_MOST_TIMES) <= half * wider:
        return (
            "the ratio seen is too near the limit for any number of pairs that anybody would run; "
            "another limit (outcome.max_cost_ratio) would settle it"
        )
    pairs = max(math.ceil(summary["n"] * (half * wider / room) ** 2), summary["n"] + 1)
    side = "within" if inside else "above"
    return (
        f"about {counted(pairs)} pairs, {counted(summary['n'])} were run, would show it {side} the "
        f"limit with power {_POWER:g} if the ratio and its spread stay (outcome.pairs in the policy)"
    )
