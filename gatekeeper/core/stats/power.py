"""What a token budget can attain, from the reference detection times of the bank.

Reference points: median tokens to detection with p and q on synthetic order-2 Markov models
(gamma 4, acceptance .76, alpha .001), medians ±30 %: estimates until a real model confirms them.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from gatekeeper.core.claims import equation
from gatekeeper.core.stats.paired_blocks import detectable_log_ratio

__all__ = [
    "ASSUMED_SPREAD",
    "REFERENCE",
    "TARGET_POWER",
    "attainable",
    "detectable_speedup",
    "power",
]

ASSUMED_SPREAD = 0.1
"""Relative noise of a block pair that the serving gate's plan and report assume."""

TARGET_POWER = 0.9
"""Power at which the smallest provable speed-up is stated."""

REFERENCE = {
    "correction drawn from q": 130,
    "acceptance of every draft with p > 0.1": 407,
    "residual not subtracted": 425,
    "q at the wrong temperature": 752,
    "bonus drawn from q": 852,
    "acceptance 1.1 times too lenient": 4160,
    "repetition penalty ignoring the window": 5862,
}
"""Median tokens to detection at alpha = .001."""

_REFERENCE_ALPHA = 1e-3
_WEIGHT = math.log(9 * 10)  # groups times a typical group's size: what mixing over members costs


@equation("equivalence.power")
def power(median: float, tokens: int, *, alpha: float) -> float:
    """Probability of detecting, within ``tokens``, a fault of the given median at alpha .001.

    log E of a likelihood ratio after n tokens is about normal with mean gn and variance 2gn, and
    it must reach log(1/alpha) plus the cost of mixing; g follows from the median.
    """
    if tokens <= 0:
        return 0.0
    need = math.log(1 / alpha) + _WEIGHT
    growth = (math.log(1 / _REFERENCE_ALPHA) + _WEIGHT) / median
    return NormalDist().cdf((growth * tokens - need) / math.sqrt(2 * growth * tokens))


def attainable(tokens: int, *, alpha: float) -> dict[str, float]:
    """Power for each reference fault, rounded to whole percent."""
    return {name: round(power(m, tokens, alpha=alpha), 2) for name, m in REFERENCE.items()}


@equation("serving.detectable_speedup")
def detectable_speedup(
    pairs: int, *, spread: float, confidence: float, target_power: float
) -> float:
    """Smallest speed-up that ``pairs`` block pairs prove with this power.

    ``spread`` is the sd of a pair's log ratio, roughly its relative noise.
    """
    return math.exp(
        detectable_log_ratio(pairs, sd=spread, confidence=confidence, power=target_power)
    )
