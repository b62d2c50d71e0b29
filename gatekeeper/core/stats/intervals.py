"""Intervals and tests of the statistics libraries, wrapped so that no evidence never passes.

Known traps of statsmodels 0.15 and scipy 1.17 that the wrappers close: ``mcnemar(exact=False)``
without a discordant pair gives p = 0; ``proportion_confint`` defaults to (0, 0) for 0 of 10;
``multipletests`` with a NaN rejects the rest; ``chisquare([0, 0])`` is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as _mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Discordance", "clopper_pearson", "goodness_of_fit", "holm", "mcnemar", "wilson"]

_MIN_EXPECTED = 10.0


def _proportion(count: int, n: int, confidence: float, method: str) -> tuple[float, float]:
    if n < 1 or not 0 <= count <= n:
        raise InputError(
            "must be a count out of n >= 1",
            field="count",
            value=f"{count} of {n}",
            remedy="observe something first; nothing observed has no interval",
        )
    _level("confidence", confidence)
    low, high = proportion_confint(count, n, alpha=1 - confidence, method=method)
    return float(low), float(high)


def wilson(count: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion, two-sided.

    Raises:
        InputError: n < 1, or the count is not in 0..n.
    """
    return _proportion(count, n, confidence, "wilson")


def clopper_pearson(count: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact (Clopper–Pearson) interval of a proportion, two-sided.

    Raises:
        InputError: n < 1, or the count is not in 0..n.
    """
    return _proportion(count, n, confidence, "beta")


@dataclass(frozen=True)
class Discordance:
    """Paired comparison of two proportions: counts and the exact two-sided p-value of equality.

    ``p_value`` is None where no pair is discordant: there is nothing to test.
    """

    baseline_only: int
    candidate_only: int
    pairs: int
    p_value: float | None


def mcnemar(baseline_only: int, candidate_only: int, pairs: int) -> Discordance:
    """Exact McNemar test.

    Raises:
        InputError: a count is negative, or more pairs are discordant than there are pairs.
    """
    b, c = baseline_only, candidate_only
    if min(b, c) < 0 or b + c > pairs or pairs < 1:
        raise InputError(
            "must be counts of discordant pairs",
            field="discordance",
            value=f"b={b}, c={c}, n={pairs}",
            remedy="use b, c >= 0 and b + c <= n, n >= 1",
        )
    if b + c == 0:
        return Discordance(b, c, pairs, None)
    table = [[pairs - b - c, b], [c, 0]]
    return Discordance(b, c, pairs, float(_mcnemar(table, exact=True).pvalue))


def holm(p_values: Sequence[float], alpha: float) -> tuple[bool, ...]:
    """Holm's rejections; one per p-value.

    Raises:
        InputError: a p-value is not a number in [0, 1].
    """
    _level("alpha", alpha)
    for i, p in enumerate(p_values):
        if not (math.isfinite(p) and 0 <= p <= 1):
            raise InputError(
                "is not a probability",
                field=f"p_values[{i}]",
                value=p,
                remedy="drop tests that could not run before correcting",
            )
    if not p_values:
        return ()
    return tuple(bool(x) for x in multipletests(list(p_values), alpha=alpha, method="holm")[0])


def goodness_of_fit(observed: Sequence[float], expected: Sequence[float]) -> float | None:
    """Chi-square p-value after merging sparse bins to an expectation of at least 10.

    Bins are merged in rising order of expectation, never dropped. None where fewer than two
    bins remain: there is nothing to test.

    Raises:
        InputError: lengths differ, a count is negative or not finite, or totals differ.
    """
    o, e = np.asarray(observed, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    if o.shape != e.shape or o.ndim != 1:
        raise InputError(
            "must pair with expected", field="observed", value=o.shape, remedy="give equal lengths"
        )
    if not (np.isfinite(o).all() and np.isfinite(e).all() and (o >= 0).all() and (e >= 0).all()):
        raise InputError("must be finite counts", field="observed", remedy="use counts >= 0")
    if not math.isclose(float(o.sum()), float(e.sum()), rel_tol=1e-6, abs_tol=1e-9):
        raise InputError(
            "must have the same total as expected",
            field="observed",
            value=float(o.sum()),
            remedy=f"scale expected to it, now {float(e.sum()):g}",
        )
    merged_o: list[float] = []
    merged_e: list[float] = []
    open_o = open_e = 0.0
    for i in np.argsort(e, kind="stable"):
        open_o, open_e = open_o + float(o[i]), open_e + float(e[i])
        if open_e >= _MIN_EXPECTED:
            merged_o.append(open_o)
            merged_e.append(open_e)
            open_o = open_e = 0.0
    if merged_e and open_e > 0:
        merged_o[-1] += open_o
        merged_e[-1] += open_e
    if len(merged_e) < 2:  # noqa: PLR2004 - one bin has no degree of freedom
        return None
    # Merging may leave rounding in the totals, which scipy refuses.
    scale = sum(merged_o) / sum(merged_e)
    return float(stats.chisquare(merged_o, [x * scale for x in merged_e]).pvalue)


def _level(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise InputError("must lie in (0, 1)", field=name, value=value, remedy="use e.g. 0.95")
