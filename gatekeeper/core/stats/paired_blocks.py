"""Paired comparison of load blocks: one statistic per block, one ratio per pair of blocks.

Requests of one block share the machine's mood, so the block is the unit, never the request: a
request bootstrap over sequential arms gives 70-100 % false positives under drift. Each pair runs
both arms over the same requests in random order; d = log(statistic ratio) of the pair is what a
paired t (Student 1908) bounds, with an exact sign-flip test (Fisher 1935) beside it.

Constant data says nothing about noise, and scipy's t would call it certain: it is no evidence
here. So are fewer pairs than a sign-flip test needs to reach the level at all, and blocks
in which the statistic is undefined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import stats

from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "PairedMean",
    "compare_differences",
    "compare_ratios",
    "detectable_log_ratio",
    "judge",
    "minimum_pairs",
    "pairs_needed",
    "sign_flip_p",
]

_EXACT_FLIPS = 14
_MONTE_CARLO_FLIPS = 9_999
_RELATIVE_RESOLUTION = 1e-9

Side = Literal["above", "below"]


@dataclass(frozen=True)
class PairedMean:
    """Mean of per-pair values with one-sided bounds, each at ``confidence``.

    For ratios the values are logs; ``ratio``, ``ratio_low`` and ``ratio_high`` undo the logarithm.
    ``mean`` is None without usable pairs; ``low``, ``high`` and ``sd`` are None where ``problem``
    says why there is no evidence of the noise.
    """

    values: tuple[float, ...]
    confidence: float
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    problem: str | None

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.values)

    @property
    def ratio(self) -> float | None:
        """Geometric mean of the ratios."""
        return _exp(self.mean)

    @property
    def ratio_low(self) -> float | None:
        """Lower one-sided bound of the ratio."""
        return _exp(self.low)

    @property
    def ratio_high(self) -> float | None:
        """Upper one-sided bound of the ratio."""
        return _exp(self.high)


def minimum_pairs(confidence: float) -> int:
    """Fewest pairs whose sign-flip test can reach the level: 2^-n <= 1 - confidence.

    Raises:
        InputError: confidence outside (0.5, 1).
    """
    if not 0.5 < confidence < 1:  # noqa: PLR2004 - below one half a bound is on the wrong side
        raise InputError("must lie in (0.5, 1)", field="confidence", value=confidence)
    return max(3, math.ceil(-math.log2(1 - confidence) - 1e-12))


def compare_ratios(
    numerator: ArrayLike, denominator: ArrayLike, *, confidence: float
) -> PairedMean:
    """Compare positive block statistics of two arms, shape [pairs] each, by their log ratio."""
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    good = (top > 0) & (bottom > 0) & np.isfinite(top) & np.isfinite(bottom)
    if not good.all():
        return _nothing(f"undefined in {int((~good).sum())} of {good.size} pairs", confidence)
    return _paired(np.log(top) - np.log(bottom), confidence, scale=1.0)


def compare_differences(first: ArrayLike, second: ArrayLike, *, confidence: float) -> PairedMean:
    """Compare block statistics of two arms, shape [pairs] each, by ``first - second``."""
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    good = np.isfinite(one) & np.isfinite(two)
    if not good.all():
        return _nothing(f"undefined in {int((~good).sum())} of {good.size} pairs", confidence)
    scale = float(np.abs(np.concatenate([one, two])).max(initial=0.0))
    return _paired(one - two, confidence, scale=scale)


def sign_flip_p(values: ArrayLike, *, limit: float, side: Side, seed: int = 0) -> float | None:
    """One-sided p of "the mean is not ``side`` of ``limit``" by flipping signs of deviations.

    Exact up to 14 pairs, else 9,999 seeded flips with the +1 rule (Phipson and Smyth 2010). None
    for no values.
    """
    deviations = np.asarray(values, dtype=float) - limit
    if side == "below":
        deviations = -deviations
    n = deviations.size
    if n == 0:
        return None
    observed = deviations.mean()
    exact = n <= _EXACT_FLIPS
    if exact:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], (_MONTE_CARLO_FLIPS, n))
    slack = 1e-12 * float(np.abs(deviations).max())
    beaten = int((signs @ deviations / n >= observed - slack).sum())
    return beaten / 2**n if exact else (beaten + 1) / (_MONTE_CARLO_FLIPS + 1)


def judge(result: PairedMean, *, limit: float, want: Side, seed: int = 0) -> Outcome:
    """Say whether the mean lies on the wanted side of ``limit`` (a log for ratios).

    PASS when the t bound and the sign-flip test both put it there, FAIL when both put it on
    the other side, else INCONCLUSIVE.
    """
    if result.low is None or result.high is None:
        return Outcome.INCONCLUSIVE
    alpha = 1 - result.confidence
    proved = {"above": result.low > limit, "below": result.high < limit}
    for side, outcome in ((want, Outcome.PASS), (_other(want), Outcome.FAIL)):
        p = sign_flip_p(result.values, limit=limit, side=side, seed=seed)
        if proved[side] and p is not None and p <= alpha + 1e-12:
            return outcome
    return Outcome.INCONCLUSIVE


def detectable_log_ratio(n: int, *, sd: float, confidence: float, power: float = 0.9) -> float:
    """Smallest mean that n pairs with sd ``sd`` prove with the given power (t approximation)."""
    df = n - 1
    quantiles = stats.t.ppf(confidence, df) + stats.t.ppf(power, df)
    return float(quantiles * sd / math.sqrt(n))


def pairs_needed(
    result: PairedMean, *, limit: float, power: float = 0.9, at_most: int = 10_000
) -> int | None:
    """Pairs in all that would settle the question if mean and sd stay as seen.

    None where they are unknown or more than ``at_most`` would be needed.
    """
    if result.mean is None or result.sd is None:
        return None
    effect = abs(result.mean - limit)
    n = minimum_pairs(result.confidence)
    while n <= at_most:
        if (
            detectable_log_ratio(n, sd=result.sd, confidence=result.confidence, power=power)
            <= effect
        ):
            return n
        n = max(n + 1, math.ceil(n * 1.05))
    return None


def _paired(values: Floats, confidence: float, *, scale: float) -> PairedMean:
    n = values.size
    needed = minimum_pairs(confidence)
    mean = float(values.mean()) if n else None
    if n < needed:
        return PairedMean(
            tuple(values.tolist()), confidence, mean, None, None, None, f"{n} of {needed} pairs"
        )
    sd = float(values.std(ddof=1))
    if sd <= _RELATIVE_RESOLUTION * max(scale, float(np.abs(values).max())):
        problem = "every pair gives the same value: no evidence of the noise"
        return PairedMean(tuple(values.tolist()), confidence, mean, None, None, None, problem)
    half = float(stats.t.ppf(confidence, n - 1)) * sd / math.sqrt(n)
    centre = float(values.mean())
    return PairedMean(
        tuple(values.tolist()), confidence, centre, sd, centre - half, centre + half, None
    )


def _nothing(problem: str, confidence: float) -> PairedMean:
    return PairedMean((), confidence, None, None, None, None, problem)


def _other(side: Side) -> Side:
    return "below" if side == "above" else "above"


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)
