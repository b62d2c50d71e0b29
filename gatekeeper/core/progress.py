"""Expected progress of a round, and when it pays.

Formulas: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
Decoding" (ICML 2023), in the form of the founding essay. Times share one unit, any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gatekeeper.core.claims import equation
from gatekeeper.core.documents import check

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "break_even_progress",
    "expected_progress",
    "marginal_contribution",
    "marginal_from_curve",
    "ordinary_time",
    "progress_from_curve",
    "round_time",
    "speedup",
]


@equation("progress.expected")
def expected_progress(alpha: float, gamma: int) -> float:
    """Tokens committed per round, bonus or correction included, when acceptance is constant.

    E[P] = 1 + α + … + α^γ = (1 − α^(γ+1)) / (1 − α), and γ + 1 at α = 1. Positions are assumed
    independent: an intuition, not a measurement.

    Raises:
        InputError: ``alpha`` outside [0, 1] or ``gamma`` negative.
    """
    _check_alpha(alpha)
    _check_gamma(gamma)
    # the sum, not the quotient: it has the limit at alpha = 1 and loses no digits near it
    return math.fsum(alpha**i for i in range(gamma + 1))


@equation("progress.marginal")
def marginal_contribution(alpha: float, position: int) -> float:
    """Expected tokens that draft position ``position`` (counted from 1) adds: α^position.

    Raises:
        InputError: ``alpha`` outside [0, 1] or ``position`` below 1.
    """
    _check_alpha(alpha)
    check([("position", position, position >= 1, "count positions from 1")])
    return float(alpha**position)


@equation("progress.from_curve")
def progress_from_curve(conditional_acceptance: Sequence[float], gamma: int | None = None) -> float:
    """Tokens committed per round from the measured conditional acceptance curve.

    E[P] = 1 + Σ_{i=1..γ} Π_{j<=i} c_j with c_j = P(position j accepted | those before accepted);
    ``gamma`` defaults to the length of the curve.

    Raises:
        InputError: a value outside [0, 1], or a window longer than the curve was measured.
    """
    gamma = len(conditional_acceptance) if gamma is None else gamma
    return 1.0 + math.fsum(marginal_from_curve(conditional_acceptance, i + 1) for i in range(gamma))


@equation("progress.marginal_from_curve")
def marginal_from_curve(conditional_acceptance: Sequence[float], position: int) -> float:
    """P(draft position ``position`` (from 1) is accepted) = Π_{j<=position} c_j.

    Raises:
        InputError: a value outside [0, 1], or the curve does not reach the position.
    """
    known = len(conditional_acceptance)
    check(
        [
            (
                "position",
                position,
                1 <= position <= known,
                f"the curve was measured for {known} positions",
            )
        ]
    )
    for value in conditional_acceptance[:position]:
        _check_alpha(value)
    return math.prod(conditional_acceptance[:position])


@equation("progress.ordinary_time")
def ordinary_time(progress: float, step: float) -> float:
    """Time in which ordinary decoding commits ``progress`` tokens: E[P] · T1.

    Raises:
        InputError: ``step`` not positive.
    """
    check([("step", step, step > 0, "give the time of one ordinary step")])
    return progress * step


@equation("progress.round_time")
def round_time(draft_s: float, verify_s: float, overhead_s: float = 0.0) -> float:
    """Time of one speculative round: Td(γ) + Tv(γ) + To.

    Raises:
        InputError: a negative part, or a round that takes no time at all.
    """
    total = draft_s + verify_s + overhead_s
    check(
        [
            (name, value, value >= 0, "give seconds, 0 or more")
            for name, value in (
                ("draft_s", draft_s),
                ("verify_s", verify_s),
                ("overhead_s", overhead_s),
            )
        ]
        + [("verify_s", verify_s, total > 0, "give the time the round took")]
    )
    return total


@equation("progress.speedup")
def speedup(
    progress: float, ordinary_s: float, draft_s: float, verify_s: float, overhead_s: float = 0.0
) -> float:
    """Latency speed-up E[P]·T1 / (Td(γ) + Tv(γ) + To); above 1 speculation wins.

    Raises:
        InputError: times that ``ordinary_time`` or ``round_time`` refuse.
    """
    return ordinary_time(progress, ordinary_s) / round_time(draft_s, verify_s, overhead_s)


@equation("progress.break_even")
def break_even_progress(
    ordinary_s: float, draft_s: float, verify_s: float, overhead_s: float = 0.0
) -> float:
    """Tokens per round at which the speed-up is exactly 1: (Td + Tv + To) / T1.

    Raises:
        InputError: as ``speedup``.
    """
    return round_time(draft_s, verify_s, overhead_s) / ordinary_time(1.0, ordinary_s)


def _check_alpha(alpha: float) -> None:
    check([("acceptance", alpha, 0 <= alpha <= 1, "use a probability in [0, 1]")])


def _check_gamma(gamma: int) -> None:
    check([("gamma", gamma, gamma >= 0, "use 0 or more draft tokens")])
