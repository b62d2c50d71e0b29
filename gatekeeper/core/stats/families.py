"""The alternatives of the strict bank that need no learning, each as factors per token.

Every function maps ``Rows`` to ``Factors``: f with E_p f <= 1 given the past (equal to 1 where the
alternative is a distribution on the support of p), and E_p|f − 1| (or a bound above it) for the
numeric envelope. Table and formulas: the project's statistics design, "E-process bank".
Rows whose token has p = 0 are neutral in every family but ``support``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.core.stats.rows import THETAS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatekeeper.core.stats.rows import Rows

    F = NDArray[np.float64]

__all__ = [
    "EXACT_SUPPORT_RATE",
    "SUPPORT_RATE",
    "Factors",
    "duplicate",
    "join",
    "legendre",
    "mixtures",
    "named",
    "pit",
    "serial",
    "support",
    "tilts",
]

EPSILONS = (0.02, 0.1, 0.3)
ARGMAX_THETAS = (-0.7, -0.2, 0.2, 0.7)
PIT_THETAS = (-0.4, -0.15, 0.15, 0.4)
SERIAL_THETAS = (-0.8, -0.25, 0.25, 0.8)
DUPLICATE_EPSILONS = (0.02, 0.1, 0.3, 0.9)
SUPPORT_RATE = 0.01
"""Share of emitted tokens that may lie outside the support of p for numeric reasons alone.

A hard top-p or top-k edge moves with the last bit of a bf16 logit: about one token in 180 then
falls outside the support that another batch shape computed."""

EXACT_SUPPORT_RATE = 1e-6
"""The same where logits are alike to float32 rounding. An edge then moves where two logits, or a sum and
its limit, lie as close as that: at one position in a million, and by a token that is seldom drawn."""

_NAMED_SHARE = 0.98
_LEGENDRE_DEVIATION = (0.5, 0.3849001794597505, 0.3248)
"""∫|P_j(2u − 1)| du over [0, 1], j = 1, 2, 3 (the last rounded up)."""


@dataclass(frozen=True)
class Factors:
    """Factors of one family: ``names`` of m members, ``f`` and ``dev`` = E_p|f − 1| [n, m]."""

    names: tuple[str, ...]
    f: F
    dev: F


def _ratio(rows: Rows, alt: F) -> F:
    """alt(x) / p(x), 1 where p(x) = 0."""
    inside = rows.p_x > 0
    return np.where(inside, alt / np.where(inside, rows.p_x, 1.0), 1.0)


def _mixture(name: str, ratio: F, dev: F, epsilons: tuple[float, ...]) -> Factors:
    e = np.array(epsilons)
    return Factors(
        tuple(f"{name}, ε = {x:g}" for x in epsilons),
        (1 - e) + e * ratio[:, None],
        e * dev[:, None],
    )


def join(*parts: Factors) -> Factors:
    """Put families side by side."""
    return Factors(
        tuple(name for part in parts for name in part.names),
        np.concatenate([part.f for part in parts], axis=1),
        np.concatenate([part.dev for part in parts], axis=1),
    )


def tilts(rows: Rows) -> Factors:
    """Exponential tilts e^{θ s(x)} / E_p e^{θ s}; s = log p, 1[rank 0], clipped log q/p."""
    theta = np.array(THETAS)
    inside = (rows.p_x > 0)[:, None]
    log_p = np.log(np.where(rows.p_x > 0, rows.p_x, 1.0))
    by_p = np.where(inside, np.exp(log_p[:, None] * theta) / rows.z, 1.0)
    by_ratio = np.where(inside, np.exp(rows.ratio[:, None] * theta) / rows.ratio_z, 1.0)
    a = np.array(ARGMAX_THETAS)
    mass = rows.p_max[:, None]  # of the first of the most probable tokens, rank 0
    z = 1 - mass + mass * np.exp(a)
    by_max = np.where((rows.rank == 0)[:, None], np.exp(a), 1.0) / z
    max_dev = mass * np.abs(np.exp(a) / z - 1) + (1 - mass) * np.abs(1 / z - 1)
    return join(
        Factors(tuple(f"tilt of log p, θ = {t:g}" for t in THETAS), by_p, rows.z_dev),
        Factors(tuple(f"tilt of arg max, θ = {t:g}" for t in ARGMAX_THETAS), by_max, max_dev),
        Factors(tuple(f"tilt of log q/p, θ = {t:g}" for t in THETAS), by_ratio, rows.ratio_dev),
    )


def mixtures(rows: Rows, previous: F, *, bonus_only: bool) -> Factors:
    """(1 − ε) + ε alt(x)/p(x), alt = q or p at the previous context.

    ``previous`` is p of the row before at this row's token, NaN at the first row of a request.
    At the bonus position the alternative can be the whole law (ε = 1 in "bonus from q").
    """
    epsilons = (*EPSILONS, 0.95) if bonus_only else EPSILONS
    here = rows.bonus if bonus_only else np.ones(len(rows), dtype=bool)
    use_q = rows.has_q & here
    use_previous = ~np.isnan(previous) & here
    by_q = np.where(use_q, _ratio(rows, np.where(use_q, rows.q_x, 0.0)), 1.0)
    by_previous = np.where(use_previous, _ratio(rows, np.where(use_previous, previous, 0.0)), 1.0)
    where = "bonus " if bonus_only else ""
    return join(
        _mixture(f"{where}mixture with q", by_q, np.where(use_q, 2 * (1 - rows.beta), 0), epsilons),
        # A total variation of 1 is a bound; the exact one would need another pass.
        _mixture(
            f"{where}mixture with previous p", by_previous, np.where(use_previous, 2.0, 0), epsilons
        ),
    )


def named(rows: Rows) -> Factors:
    """Likelihood ratios of three known faults, at window positions only, mixed with 2 % of H0.

    β = Σ min(p, q). Residual not subtracted: min(1, q/p) + 1 − β. Correction from q:
    min(1, q/p) + (1 − β) q/p. Absolute residual: min(1, q/p) + |1 − q/p|/2, which is (1 + q/p)/2.
    The 2 % keep one token that a fault rules out from ending its member for good.
    """
    use = rows.has_q & ~rows.bonus & (rows.p_x > 0)
    r = np.where(use, _ratio(rows, np.where(use, rows.q_x, 0.0)), 1.0)
    beta = np.where(use, rows.beta, 1.0)
    least = np.minimum(1.0, r)
    f = np.stack([least + 1 - beta, least + (1 - beta) * r, (1 + r) / 2], axis=1)
    dev = np.stack([rows.unsubtracted_dev, rows.from_q_dev, 1 - beta], axis=1)
    return Factors(
        ("residual not subtracted", "correction from q", "absolute residual"),
        1 - _NAMED_SHARE + _NAMED_SHARE * f,
        np.where(use[:, None], _NAMED_SHARE * dev, 0.0),
    )


def legendre(u: F) -> F:
    """Shifted Legendre polynomials P_1, P_2, P_3 at u in [0, 1], shape [n, 3]."""
    x = 2 * u - 1
    return np.stack([x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2], axis=1)


def pit(rows: Rows, v: F) -> Factors:
    """1 + θ φ_j(u), u = F(x−) + V p(x), in token-id order and in order of probability.

    ``v`` are auxiliary uniforms, independent of the tokens. φ_j: Legendre, j = 1, 2, 3.
    """
    theta = np.array(PIT_THETAS)
    parts = []
    for order, base in (("id", rows.below), ("rank", rows.above)):
        u = np.clip(base + v * rows.p_x, 0.0, 1.0)
        phi = legendre(u)
        parts += [
            Factors(
                tuple(f"PIT {order} order, j = {j + 1}, θ = {t:g}" for t in PIT_THETAS),
                1 + theta * phi[:, j : j + 1],
                np.broadcast_to(np.abs(theta) * _LEGENDRE_DEVIATION[j], (len(rows), len(theta))),
            )
            for j in range(3)
        ]
    return join(*parts)


def serial(u: F, lags: dict[str, F]) -> Factors:
    """1 + θ (2u − 1)(2u_lag − 1) for each lag; NaN where there is no such earlier row."""
    theta = np.array(SERIAL_THETAS)
    parts = []
    for name, lagged in lags.items():
        past = np.where(np.isnan(lagged), 0.5, lagged) * 2 - 1
        parts.append(
            Factors(
                tuple(f"serial {name}, θ = {t:g}" for t in SERIAL_THETAS),
                1 + theta * ((2 * u - 1) * past)[:, None],
                np.abs(theta * past[:, None]) / 2,
            )
        )
    return join(*parts)


def duplicate(rows: Rows, share: F) -> Factors:
    """(1 − ε) + ε alt(x)/p(x), alt = tokens of earlier replicates that had the same prefix.

    ``share`` is the part of those replicates that emitted this very token, NaN where there is none.
    """
    use = ~np.isnan(share)
    ratio = np.where(use, _ratio(rows, np.where(use, share, 0.0)), 1.0)
    return _mixture("duplicate", ratio, np.where(use, 2.0, 0.0), DUPLICATE_EPSILONS)


def support(rows: Rows, rate: float) -> Factors:
    """(1 − ε) + ε 1[p(x) = 0]/η: more than a share η = ``rate`` of tokens outside the support of p.

    E f <= 1 for every law whose mass outside the support is at most η. Everywhere, and at the bonus
    position alone, where a missing mask would drown in the window's tokens.
    """
    ratio = np.where(rows.p_x > 0, 0.0, 1.0 / rate)
    none = np.zeros(len(rows))
    return join(
        _mixture("outside the support", ratio, none, EPSILONS),
        _mixture("outside the support at bonus", np.where(rows.bonus, ratio, 1.0), none, EPSILONS),
    )
