"""Has a rate left the side of a bound where it should be? Asked again and again, without end.

For the alternatives q below a bound b, the likelihood ratio of what a look saw, q against b, is an
e-value under every rate of b or more. Each alternative keeps M ← max(M, 1) · ratio, and the alarm is
a mean of the M of at least 1/``ALPHA``. Such a detector has at least 1/``ALPHA`` looks on average
before its first false alarm (Shin, Ramdas and Rinaldo 2024, e-detectors: M is at most the
Shiryaev–Roberts sum, whose excess over the number of looks is a supermartingale), and what was seen
long ago does not slow it down.

Draft tokens of a request are alike. Ratios are therefore taken to the power 1/design effect, as if
so many fewer independent tokens had been seen: exact for a design effect of 1, else as good as the
normal approximation of the ratio estimator.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALPHA", "ALTERNATIVES", "START", "alarms", "follow", "wilson"]

ALPHA = 1e-6
"""One false alarm in a million looks (87 days at 7.5 s) of a rate that lies on the bound."""

ALTERNATIVES = (0.9, 0.75, 0.5, 0.25, 0.05)
"""Rates looked for, as shares of the bound: from a slow decline to a draft that fits nothing."""

START = (0.0,) * len(ALTERNATIVES)
"""Logarithms of the M of a detector that has seen nothing."""


def follow(
    logs: Sequence[float], *, hits: int, trials: int, bound: float, design_effect: float
) -> tuple[float, ...]:
    """Add a look to a detector of rates below ``bound``, which lies in (0, 1)."""
    updated = []
    for log_m, share in zip(logs, ALTERNATIVES, strict=True):
        q = share * bound
        ratio = hits * math.log(share) + (trials - hits) * math.log((1 - q) / (1 - bound))
        updated.append(max(log_m, 0.0) + ratio / design_effect)
    return tuple(updated)


def alarms(logs: Sequence[float]) -> bool:
    """Whether the rate has been below the bound beyond doubt."""
    most = max(logs)
    mean = most + math.log(math.fsum(math.exp(x - most) for x in logs) / len(logs))
    return mean >= -math.log(ALPHA)


def wilson(
    hits: float, trials: float, *, design_effect: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Wilson interval of a rate from ``trials`` / ``design_effect`` independent ones; trials > 0."""
    n = trials / design_effect
    rate = hits / trials
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, min(centre - half, rate)), min(1.0, max(centre + half, rate))
