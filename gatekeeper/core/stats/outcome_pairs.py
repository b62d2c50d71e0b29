"""Paired task outcomes: difference in success and ratio of cost per success, cluster-robust.

Table ``pairs``, one row per pair (the same task decoded by both arms): ``task``, ``sample``,
``kind``, ``cluster``, ``baseline_success``, ``candidate_success`` (0 or 1), ``baseline_cost``,
``candidate_cost`` (any one unit, engine-busy seconds in the gate). Pairs of one cluster may depend
on each other; clusters do not. With one pair per cluster everything below is the plain method.

Success: Tango's interval on counts divided by the design effect (Rao and Scott 1981, 1992), which
is the between-cluster variance of the mean difference over the variance of as many independent
pairs, never below 1; few clusters know their own variance badly, so the counts shrink further by
(z/t)² with t on clusters − 1 degrees of freedom (Korn and Graubard 1998). Where no pair differs the
effect cannot be seen, and a whole cluster counts as one pair.

Cost: log of (C1/S1)/(C0/S0) with the influence value C1/C̄1 − S1/S̄1 − C0/C̄0 + S0/S̄0 of each pair
(delta method), summed per cluster, t quantile. Without a success in an arm there is no cost per
success, and no figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from gatekeeper.core.claims import equation
from gatekeeper.core.stats.noninferiority import (
    minimal_pairs,
    non_inferiority,
    pairs_needed,
    tango_interval,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from gatekeeper.core.stats.noninferiority import NonInferiority

    Floats = NDArray[np.float64]

__all__ = [
    "ARMS",
    "BASELINE",
    "CANDIDATE",
    "REQUIRED",
    "CostRatio",
    "Effective",
    "check_pairs",
    "cost_ratio",
    "effective",
    "success",
]

BASELINE, CANDIDATE = "baseline", "candidate"
ARMS = (BASELINE, CANDIDATE)
_MEASURES = tuple(f"{arm}_{what}" for arm in ARMS for what in ("success", "cost"))
REQUIRED = ("task", "sample", "kind", "cluster", *_MEASURES)
"""Columns that the statistics read."""

_POWER = 0.9
_TWO = 2


@dataclass(frozen=True)
class Effective:
    """What the pairs are worth: ``pairs`` independent ones; None where it cannot be known."""

    n: int
    clusters: int
    design_effect: float | None
    pairs: float | None


@dataclass(frozen=True)
class CostRatio:
    """Candidate's cost per success over the baseline's, with one-sided bounds; ``problem`` or figures."""

    ratio: float | None
    low: float | None
    high: float | None
    problem: str | None


def check_pairs(table: pd.DataFrame) -> None:
    """Refuse a table that no verdict may rest on; an empty one is allowed, and proves nothing.

    Raises:
        InputError: a missing column, a pair given twice, a success that is not 0 or 1, a cost that
            is negative or not finite.
    """
    for name in REQUIRED:
        if name not in table.columns:
            raise InputError("is missing", field=f"pairs.{name}", remedy="give every column")
        if table[name].isna().any():
            raise InputError(
                "is not given for every pair",
                field=f"pairs.{name}",
                value=_first(table, table[name].isna()),
                remedy="leave no pair out and no value blank",
            )
    twice = table.duplicated(["task", "sample"])
    if twice.any():
        raise InputError(
            "is given twice",
            field="pairs.task",
            value=_first(table, twice),
            remedy="use one id once",
        )
    for arm in ARMS:
        won = table[f"{arm}_success"].to_numpy(float)
        cost = table[f"{arm}_cost"].to_numpy(float)
        for name, good, remedy in (
            ("success", (won == 0) | (won == 1), "use 0 or 1"),
            ("cost", np.isfinite(cost) & (cost >= 0), "use a finite cost of 0 or more"),
        ):
            if not good.all():
                raise InputError(
                    "is out of range",
                    field=f"pairs.{arm}_{name}",
                    value=_first(table, ~good),
                    remedy=remedy,
                )


def effective(table: pd.DataFrame, *, alpha: float) -> Effective:
    """Design effect and effective number of pairs, for one-sided error ``alpha``."""
    difference = _difference(table)
    n = len(difference)
    codes, clusters = _clusters(table)
    if n == 0 or clusters < _TWO:
        return Effective(n, clusters, None, None)
    if clusters == n:
        return Effective(n, clusters, 1.0, float(n))
    deviations = difference - difference.mean()
    spread = float((deviations**2).sum())
    if spread == 0:
        return Effective(n, clusters, n / clusters, clusters * _shrink(clusters, alpha))
    sums = np.bincount(codes, weights=deviations, minlength=clusters)
    between = clusters / (clusters - 1) * float((sums**2).sum())
    design_effect = max(1.0, between / (n / (n - 1) * spread))
    pairs = n / design_effect * _shrink(clusters, alpha)
    return Effective(n, clusters, design_effect, pairs)


_LARGEST_LOG = 700.0
"""Natural logarithm of about the largest float."""


def success(table: pd.DataFrame, *, margin: float, alpha: float) -> NonInferiority:
    """Non-inferiority of the candidate's success on effective counts.

    The outcome is INCONCLUSIVE without two clusters, and below ``minimal_pairs`` effective pairs.
    ``b``, ``c``, ``n`` of the result are the effective ones; ``difference`` is that of the pairs.
    """
    return non_inferiority(*_effective_counts(table, alpha), margin=margin, alpha=alpha)


def cost_ratio(table: pd.DataFrame, *, alpha: float) -> CostRatio:
    """Cost per successful outcome, candidate over baseline, bounds each at error ``alpha``."""
    won = {arm: table[f"{arm}_success"].to_numpy(float) for arm in ARMS}
    cost = {arm: table[f"{arm}_cost"].to_numpy(float) for arm in ARMS}
    for arm in ARMS:
        if won[arm].sum() == 0:
            return CostRatio(None, None, None, f"the {arm} arm has no successful outcome")
        if not cost[arm].any():
            return CostRatio(None, None, None, f"the {arm} arm has no recorded cost")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ratio = float(cost[CANDIDATE].sum() / cost[BASELINE].sum())
    if not 0 < ratio < math.inf:  # sums beyond what a float holds
        return CostRatio(None, None, None, "the costs are too far apart or too large to compare")
    log = math.log(ratio)
    log -= math.log(won[CANDIDATE].sum() / won[BASELINE].sum())
    codes, clusters = _clusters(table)
    if clusters < _TWO:
        return CostRatio(math.exp(log), None, None, "there are fewer than two clusters")
    candidate, baseline = (
        cost[arm] / cost[arm].mean() - won[arm] / won[arm].mean() for arm in (CANDIDATE, BASELINE)
    )
    influence = candidate - baseline
    sums = np.bincount(codes, weights=influence, minlength=clusters)
    variance = clusters / (clusters - 1) * float((sums**2).sum()) / len(table) ** 2
    half = float(stats.t.isf(alpha, clusters - 1)) * math.sqrt(variance)
    if not log + half < _LARGEST_LOG:
        return CostRatio(math.exp(log), None, None, "its interval has no end")
    return CostRatio(math.exp(log), math.exp(log - half), math.exp(log + half), None)


@equation("outcome.count", table=True)
def count(table: pd.DataFrame, *, of: str) -> float | None:
    """Count ``pairs``, ``tasks``, ``samples`` (most per task), ``clusters``, ``b`` or ``c``."""
    check_pairs(table)
    b, c = _discordant(table)
    per_task = table["task"].value_counts()
    found = {
        "pairs": len(table),
        "tasks": len(per_task),
        "samples": int(per_task.max()) if len(per_task) else 0,
        "clusters": int(table["cluster"].nunique()),
        "b": b,
        "c": c,
    }
    return float(found[of])


@equation("outcome.difference", table=True)
def difference(table: pd.DataFrame) -> float | None:
    """Success of the candidate minus that of the baseline, (c − b)/n."""
    check_pairs(table)
    return float(_difference(table).mean()) if len(table) else None


@equation("outcome.success_rate", table=True)
def success_rate(table: pd.DataFrame, *, arm: str, kind: str | None = None) -> float | None:
    """Share of successful outcomes of one arm, of one kind of task or of all."""
    check_pairs(table)
    rows = table if kind is None else table[table["kind"] == kind]
    return float(rows[f"{arm}_success"].mean()) if len(rows) else None


@equation("outcome.design_effect", table=True)
def design_effect(table: pd.DataFrame, *, alpha: float) -> float | None:
    """Variance of the mean difference over that of as many independent pairs, never below 1."""
    check_pairs(table)
    return effective(table, alpha=alpha).design_effect


@equation("outcome.effective_pairs", table=True)
def effective_pairs(table: pd.DataFrame, *, alpha: float) -> float | None:
    """Independent pairs that the table's are worth."""
    check_pairs(table)
    return effective(table, alpha=alpha).pairs


@equation("outcome.interval", table=True)
def interval(table: pd.DataFrame, *, alpha: float, end: str) -> float | None:
    """End ``low`` or ``high`` of the interval of the difference, each at error ``alpha``."""
    check_pairs(table)
    b, c, n = _effective_counts(table, alpha)
    if n == 0:
        return None
    low, high = tango_interval(b, c, n, 1 - 2 * alpha)
    return {"low": low, "high": high}[end]


@equation("outcome.pairs_needed", table=True)
def needed(table: pd.DataFrame, *, margin: float, alpha: float) -> float | None:
    """Pairs that show non-inferiority of equal arms with power .9, at the observed discordance.

    Times the design effect; ``minimal_pairs`` where no pair is discordant.
    """
    check_pairs(table)
    least = minimal_pairs(margin, alpha)
    b, c = _discordant(table)
    if b + c == 0:
        return float(least)
    worth = effective(table, alpha=alpha)
    if worth.pairs is None:
        return None
    discordance = min((b + c) / worth.n, 1 - 1e-9)
    pairs = pairs_needed(margin=margin, discordance=discordance, alpha=alpha, power=_POWER)
    return float(math.ceil(pairs * worth.n / worth.pairs - 1e-9))


@equation("outcome.cost_per_success", table=True)
def cost_per_success(table: pd.DataFrame, *, arm: str) -> float | None:
    """Cost of an arm over its successful outcomes; unknown without one."""
    check_pairs(table)
    won = float(table[f"{arm}_success"].sum())
    return float(table[f"{arm}_cost"].sum()) / won if won else None


@equation("outcome.cost_ratio", table=True)
def cost_ratio_end(table: pd.DataFrame, *, alpha: float, end: str = "ratio") -> float | None:
    """``cost_ratio`` as one figure: ``end`` is ``ratio``, ``low`` or ``high``."""
    check_pairs(table)
    found = cost_ratio(table, alpha=alpha)
    return {"ratio": found.ratio, "low": found.low, "high": found.high}[end]


def _effective_counts(table: pd.DataFrame, alpha: float) -> tuple[float, float, float]:
    """b, c and n of as many independent pairs; zeros where their number cannot be known."""
    worth = effective(table, alpha=alpha)
    if worth.pairs is None:
        return 0.0, 0.0, 0.0
    share = worth.pairs / worth.n
    b, c = _discordant(table)
    return b * share, c * share, worth.pairs


def _discordant(table: pd.DataFrame) -> tuple[int, int]:
    """Baseline-only and candidate-only successes."""
    change = _difference(table)
    return int((change < 0).sum()), int((change > 0).sum())


def _difference(table: pd.DataFrame) -> Floats:
    change: Floats = table["candidate_success"].to_numpy(float) - table[
        "baseline_success"
    ].to_numpy(float)
    return change


def _clusters(table: pd.DataFrame) -> tuple[NDArray[np.int64], int]:
    codes, names = table["cluster"].factorize()
    return codes.astype(np.int64), len(names)


def _shrink(clusters: int, alpha: float) -> float:
    return float(stats.norm.isf(alpha) / stats.t.isf(alpha, clusters - 1)) ** 2


def _first(table: pd.DataFrame, bad: object) -> str:
    """Name the first row where ``bad`` holds."""
    row = table.loc[np.asarray(bad, dtype=bool)].iloc[0]
    return str(row["task"])
