"""What a token budget can attain: against reference faults, and against a declared effect.

Reference points: median tokens to detection with p and q on synthetic order-2 Markov models
(gamma 4, acceptance .76, alpha .001), medians ±30 %: estimates until a real model confirms them.

A *declared effect* is a share ε of tokens that come from the draft, unchecked: x ~ (1 − ε)p + εq. The
bank has that very likelihood ratio among its members, so its logarithm grows by the divergence, and
the tokens for a given power follow from the time a random walk with drift takes to reach a level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.core.claims import equation
from gatekeeper.core.stats.eprocess import GROUPS, member_groups
from gatekeeper.core.stats.families import EPSILONS
from gatekeeper.core.stats.paired_blocks import detectable_log_ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ASSUMED_SPREAD",
    "REFERENCE",
    "REFERENCE_EFFECTS",
    "TARGET_POWER",
    "Effect",
    "attainable",
    "detectable_speedup",
    "detection",
    "effect_of",
    "power",
    "tokens_needed",
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


@dataclass(frozen=True)
class Effect:
    """A share of tokens drawn from q instead of p, and what one token says of it.

    ``growth`` and ``variance`` (nats, nats²) are the mean and variance per token of the logarithm of
    the member that suits the share best, under the effect.
    """

    share: float
    growth: float
    variance: float


def effect_of(p: NDArray[np.floating], q: NDArray[np.floating], share: float) -> Effect:
    """Effect of a share on rows of distributions [n, V], averaged over the rows."""
    p64, q64 = p.astype(np.float64), q.astype(np.float64)
    ratio = np.where(p64 > 0, q64 / np.where(p64 > 0, p64, 1.0), 1.0)
    law = np.where(p64 > 0, (1 - share) * p64 + share * q64, 0.0)
    law /= law.sum(axis=1, keepdims=True)
    best = Effect(share, -math.inf, 0.0)
    for epsilon in EPSILONS:
        log_f = np.log1p(epsilon * (ratio - 1))
        growth = float((law * log_f).sum(axis=1).mean())
        if growth > best.growth:
            square = float((law * log_f**2).sum(axis=1).mean())
            best = Effect(share, growth, square - growth**2)
    return best


def _level(alpha: float) -> float:
    """What log of the best member must reach: log(1/alpha), and what mixing over members costs."""
    size = sum(group == "mixtures" for group in member_groups().values())
    return math.log(1 / alpha) + math.log(len(GROUPS) * size)


def detection(effect: Effect, tokens: float, *, alpha: float) -> float:
    """Probability that E >= 1/alpha at some time within ``tokens``.

    First passage of a Brownian motion with drift (inverse Gaussian distribution, Wald 1947).
    """
    if tokens <= 0:
        return 0.0
    g, v, level = effect.growth, effect.variance, _level(alpha)
    spread = math.sqrt(v * tokens)
    normal = NormalDist()
    late = normal.cdf(-(g * tokens + level) / spread)
    again = math.exp(2 * g * level / v + math.log(late)) if late > 0 else 0.0
    return normal.cdf((g * tokens - level) / spread) + again


def tokens_needed(effect: Effect, *, alpha: float, power: float) -> int:
    """Fewest tokens within which the effect is detected with this power."""
    low, high = 0, 1
    while detection(effect, high, alpha=alpha) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if detection(effect, middle, alpha=alpha) < power:
            low = middle
        else:
            high = middle
    return high


REFERENCE_EFFECTS = {
    0.02: Effect(0.02, growth=1.374e-4, variance=2.828e-4),
    0.1: Effect(0.1, growth=3.155e-3, variance=6.937e-3),
    0.3: Effect(0.3, growth=2.507e-2, variance=5.883e-2),
}
"""Effects on the synthetic model of the reference points, by share: what a plan assumes before it
has seen p and q. They scale with the divergence of the two: a better draft does less harm, and shows
later."""


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
