"""Non-inferiority of paired proportions: Tango's score test and interval, and sample sizes.

b = baseline-only successes, c = candidate-only, n pairs, difference = (c − b)/n. Source: T. Tango,
"Equivalence test and confidence interval for the difference in proportions for the paired-sample
design", Statistics in Medicine 17 (1998), 891–908.

Counts may be fractions: pairs that depend on each other count for less than one each (Rao and
Scott 1981; see :mod:`gatekeeper.core.stats.outcome_pairs`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import optimize, stats

from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError

__all__ = [
    "NonInferiority",
    "attainable_power",
    "minimal_pairs",
    "non_inferiority",
    "pairs_needed",
    "tango_interval",
    "tango_score",
]


@dataclass(frozen=True)
class NonInferiority:
    """Result of the paired test; ``p_value`` is one-sided, H0: difference <= −margin."""

    outcome: Outcome
    b: float
    c: float
    n: float
    difference: float | None
    interval: tuple[float, float] | None
    margin: float
    p_value: float | None
    minimal_pairs: int


def _check(b: float, c: float, n: float) -> None:
    # The slack is for fractions: b + c of a share of n may round above it.
    if not (min(b, c) >= 0 and n > 0 and b + c <= n * (1 + 1e-12)):
        raise InputError(
            "must be counts of discordant pairs out of n > 0",
            field="pairs",
            value=f"b={b}, c={c}, n={n}",
            remedy="use b, c >= 0 and b + c <= n",
        )


def tango_score(b: float, c: float, n: float, delta: float) -> float:
    """Score statistic of H0: difference = ``delta``, −1 < delta < 1; positive when c − b is above.

    Raises:
        InputError: counts do not fit, or |delta| >= 1.
    """
    _check(b, c, n)
    if not -1 < delta < 1:
        raise InputError("must lie in (−1, 1)", field="delta", value=delta, remedy="use a margin")
    # Tango's q21 is the constrained estimate of P(baseline only); his Δ is (b − c)/n of ours.
    gap = -delta
    quadratic = 2.0 * n
    linear = -b - c + (2 * n - b + c) * gap
    constant = -c * gap * (1 - gap)
    root = math.sqrt(max(linear * linear - 4 * quadratic * constant, 0.0))
    q = (root - linear) / (2 * quadratic)
    variance = n * (2 * q + gap * (1 - gap))
    numerator = (c - b) - n * delta
    if variance <= 0:
        # Only at delta = 0 without a discordant pair, where the numerator is 0 as well.
        return 0.0 if numerator == 0 else math.copysign(math.inf, numerator)
    return numerator / math.sqrt(variance)


def tango_interval(b: float, c: float, n: float, confidence: float = 0.9) -> tuple[float, float]:
    """Two-sided score interval of (c − b)/n; its lower end is the one-sided (1+confidence)/2 bound.

    Raises:
        InputError: counts do not fit, or the confidence is not in (0, 1).
    """
    _check(b, c, n)
    if not 0 < confidence < 1:
        raise InputError(
            "must lie in (0, 1)", field="confidence", value=confidence, remedy="use e.g. 0.9"
        )
    z = float(stats.norm.ppf((1 + confidence) / 2))
    estimate = (c - b) / n
    edge = 1 - 1e-12

    def low(delta: float) -> float:
        return tango_score(b, c, n, delta) - z

    def high(delta: float) -> float:
        return tango_score(b, c, n, delta) + z

    lower = -1.0 if low(-edge) < 0 else float(optimize.brentq(low, -edge, min(estimate, edge)))
    upper = 1.0 if high(edge) > 0 else float(optimize.brentq(high, max(estimate, -edge), edge))
    return lower, upper


def minimal_pairs(margin: float, alpha: float) -> int:
    """Smallest n that can show non-inferiority when no pair is discordant.

    With b = c = 0 the score is sqrt(n margin / (1 − margin)), so n >= z² (1 − margin) / margin.

    Raises:
        InputError: margin or alpha is not in (0, 1).
    """
    for name, value in (("margin", margin), ("alpha", alpha)):
        if not 0 < value < 1:
            raise InputError("must lie in (0, 1)", field=name, value=value, remedy="use e.g. 0.02")
    z = float(stats.norm.isf(alpha))
    return math.ceil(z * z * (1 - margin) / margin)


def non_inferiority(b: float, c: float, n: float, *, margin: float, alpha: float) -> NonInferiority:
    """PASS above −margin, FAIL when the upper end is below −margin, else INCONCLUSIVE.

    n = 0 (no evidence) and n below ``minimal_pairs`` are INCONCLUSIVE, whatever the counts.

    Raises:
        InputError: counts do not fit, or margin or alpha is out of range.
    """
    least = minimal_pairs(margin, alpha)
    if n == 0 and b == c == 0:
        return NonInferiority(Outcome.INCONCLUSIVE, 0, 0, 0, None, None, margin, None, least)
    score = tango_score(b, c, n, -margin)
    interval = tango_interval(b, c, n, 1 - 2 * alpha)
    outcome = Outcome.INCONCLUSIVE
    if interval[1] < -margin:
        outcome = Outcome.FAIL
    elif n >= least and interval[0] > -margin:
        outcome = Outcome.PASS
    p = float(stats.norm.sf(score))
    return NonInferiority(outcome, b, c, n, (c - b) / n, interval, margin, p, least)


def pairs_needed(
    *, margin: float, discordance: float, alpha: float = 0.05, power: float = 0.9
) -> int:
    """Pairs for Tango's test when the arms are equal, at the given share of discordant pairs.

    n = ((z_α sd0 + z_β sd1) / margin)², sd1² the variance of a pair's difference at equality,
    sd0² its constrained limit at the margin (Tango 1998, section 5); never below ``minimal_pairs``.

    Raises:
        InputError: a parameter is out of range.
    """
    for name, value in (("discordance", discordance), ("alpha", alpha), ("power", power)):
        if not 0 < value < 1:
            raise InputError("must lie in (0, 1)", field=name, value=value, remedy="use e.g. 0.05")
    least = minimal_pairs(margin, alpha)
    null_sd, sd = _deviations(margin, discordance)
    n = ((stats.norm.isf(alpha) * null_sd + stats.norm.ppf(power) * sd) / margin) ** 2
    return max(least, math.ceil(float(n)))


def attainable_power(n: float, *, margin: float, discordance: float, alpha: float = 0.05) -> float:
    """Probability that n pairs of equal arms pass, at the given share of discordant pairs.

    ``pairs_needed`` solved for the power; 0 where n is below ``minimal_pairs``.

    Raises:
        InputError: a parameter is out of range.
    """
    if not 0 < discordance < 1:
        raise InputError(
            "must lie in (0, 1)", field="discordance", value=discordance, remedy="use e.g. 0.05"
        )
    if n < minimal_pairs(margin, alpha):
        return 0.0
    null_sd, sd = _deviations(margin, discordance)
    reach = math.sqrt(n) * margin - stats.norm.isf(alpha) * null_sd
    return float(stats.norm.cdf(reach / sd))


def _deviations(margin: float, discordance: float) -> tuple[float, float]:
    """Standard deviations of a pair's difference: constrained at the margin, and at equality."""
    linear = -discordance + 2 * margin
    root = math.sqrt(linear**2 + 4 * discordance * margin * (1 - margin))
    q = (root - linear) / 4
    null = 2 * q + margin * (1 - margin)
    return math.sqrt(null), math.sqrt(discordance)
