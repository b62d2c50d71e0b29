"""Declared tolerance: how far the mean of each feature may lie from what the target expects.

For a feature f in [0, 1] and y_t = f(x_t) − E_p f, let S = Σy, V = Σy², n the tokens and
ψ(λ) = −log(1 − λ) − λ. With probability 1 − a, at all n at once, the mean deviation lies above
S/n − (log(1/a) + ψ(λ)V)/(λn), and symmetrically below (Fan, Grama and Liu 2015: exp(λS − ψ(λ)V) is
a supermartingale for y >= −1). Three λ, each at a/3, serve small, middling and large variances.

(n, S, V) add over requests. Strata stay apart: pooled, a deviation at the bonus position drowns in
the window's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gatekeeper.core.claims import equation
from gatekeeper.core.verdicts import Outcome, worst
from gatekeeper.errors import EvidenceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatekeeper.core.stats.rows import Rows

    F = NDArray[np.float64]

__all__ = [
    "COLUMNS",
    "FEATURES",
    "STRATA",
    "Sequences",
    "bounds",
    "contrasts",
    "deviation",
    "first_outside",
    "judge",
    "lambdas",
    "more_tokens",
    "sufficient",
    "tokens_to_pass",
]

FEATURES = (
    "most probable token",
    "among the 4 most probable",
    "probability at least 0.1",
    "probability below 0.01",
    "proposal at least as probable as target",
    "proposal at least e times as probable",
    "proposal's most probable token",
    "seen in the last 32 tokens",
    "id bit 0",
    "id bit 1",
    "id bit 2",
    "end token",
)
"""The declared class: each is an event of (x, p, q, earlier tokens), so E_p f is a plain sum."""

STRATA = ("window", "bonus", "all")
"""``all`` serves evidence whose bonus positions are unknown; it is held to the window's tolerance."""

COLUMNS = {
    "stratum": "str",
    "feature": "str",
    "n": "int64",
    "s": "float64",
    "v": "float64",
}
"""Columns of the table of sufficient statistics (one row per stratum and feature, and request)."""

_RATIO_ZERO, _RATIO_ONE = 4, 6  # first bins of log q/p above 0 and above 1, see RATIO_EDGES
_TYPICAL_VARIANCES = (0.25, 0.1, 0.03)


def contrasts(rows: Rows, *, end_known: bool) -> F:
    """Contrasts y = f(x) − E_p f [n, len(FEATURES)], NaN where the feature is unknown."""
    n = len(rows)
    q = rows.has_q
    top = np.cumsum(rows.rank_mass, axis=1)
    ratio_above = np.cumsum(rows.ratio_mass[:, ::-1], axis=1)[:, ::-1]
    bits = (rows.token[:, None] >> np.arange(rows.bits_mass.shape[1])) & 1
    pairs: list[tuple[NDArray[np.generic], F]] = [
        (rows.rank == 0, rows.rank_mass[:, 0]),
        (rows.rank < 4, top[:, 3]),  # noqa: PLR2004 - the feature's name says 4
        (rows.p_x >= np.float32(0.1), rows.head_mass),
        (rows.p_x < np.float32(0.01), rows.tail_mass),
        (
            rows.ratio_bin >= _RATIO_ZERO,
            np.where(q, ratio_above[:, _RATIO_ZERO], np.nan),
        ),
        (rows.ratio_bin >= _RATIO_ONE, np.where(q, ratio_above[:, _RATIO_ONE], np.nan)),
        (rows.draft_arg_max, np.where(q, rows.draft_arg_max_p, np.nan)),
        (rows.repeat_bin > 0, rows.repeat_mass[:, 1:].sum(axis=1)),
        *((bits[:, j], rows.bits_mass[:, j]) for j in range(bits.shape[1])),
        (rows.end, rows.end_mass if end_known else np.full(n, np.nan)),
    ]
    return np.stack([f.astype(np.float64) - mean for f, mean in pairs], axis=1)


def sufficient(y: F, bonus: NDArray[np.bool_] | None) -> pd.DataFrame:
    """(n, S, V) by stratum and feature of y [n, len(FEATURES)]; unknown ones left out.

    ``bonus`` marks the bonus positions; None where nobody knows them: then all rows are one stratum.
    """
    known = ~np.isnan(y)
    filled = np.where(known, y, 0.0)
    rows = []
    strata: tuple[tuple[str, NDArray[np.bool_]], ...] = (("all", np.ones(len(y), dtype=bool)),)
    if bonus is not None:
        strata = (("window", ~bonus), ("bonus", bonus))
    for stratum, here in strata:
        n = known[here].sum(axis=0)
        s, v = filled[here].sum(axis=0), (filled[here] ** 2).sum(axis=0)
        rows += [
            (stratum, feature, int(n[j]), float(s[j]), float(v[j]))
            for j, feature in enumerate(FEATURES)
            if n[j]
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def lambdas(tolerance: float) -> F:
    """Three λ, best for features of variance .25, .1 and .03 when they meet ``tolerance``.

    The half width log(1/a)/(λn) + λv/2 is least at λ = sqrt(2 log(1/a)/(nv)), and it equals the
    tolerance there at n = 2 log(1/a) v / tolerance², so λ = tolerance / v.
    """
    return np.minimum(tolerance / np.array(_TYPICAL_VARIANCES), 0.5)


def bounds(n: F, s: F, v: F, tolerance: float, a: float) -> tuple[F, F]:
    """Lower and upper bound of the mean deviation, each at level ``a``; infinite where n = 0."""
    lam = lambdas(tolerance)
    psi = -np.log1p(-lam) - lam
    n, s, v = (np.asarray(x, dtype=np.float64)[..., None] for x in (n, s, v))
    with np.errstate(divide="ignore", invalid="ignore"):
        width = ((np.log(len(lam) / a) + psi * v) / (lam * n)).min(axis=-1)
        mean = (s / n)[..., 0]
    empty = n[..., 0] == 0
    return np.where(empty, -np.inf, mean - width), np.where(empty, np.inf, mean + width)


@dataclass(frozen=True)
class Sequences:
    """Parameters of a declared tolerance: per stratum ``tolerance``, and the two levels.

    ``count`` is J, the sequences that share ``fail_alpha`` (each side fail_alpha / 2J).
    """

    window: float
    bonus: float
    pass_alpha: float
    fail_alpha: float
    count: int

    def of(self, stratum: str) -> float:
        """Tolerance of a stratum."""
        return self.bonus if stratum == "bonus" else self.window

    def status(self, stratum: str, n: F, s: F, v: F) -> NDArray[np.int64]:
        """Per entry 1 inside the tolerance, −1 outside, 0 undecided."""
        tolerance = self.of(stratum)
        low, high = bounds(n, s, v, tolerance, self.pass_alpha)
        inside = (low > -tolerance) & (high < tolerance)
        low, high = bounds(n, s, v, tolerance, self.fail_alpha / (2 * self.count))
        outside = (low > tolerance) | (high < -tolerance)
        return np.where(outside, -1, np.where(inside, 1, 0)).astype(np.int64)


def judge(table: pd.DataFrame, sequences: Sequences) -> tuple[Outcome, pd.DataFrame]:
    """Judge summed sufficient statistics, one row per sequence.

    ``table`` has ``COLUMNS`` (and may have more that identify a sequence). Returns the worst
    outcome and the rows with ``deviation``, ``low``, ``high`` (at ``pass_alpha``), ``tolerance``
    and ``outcome`` added. No rows is INCONCLUSIVE.
    """
    out = table.reset_index(drop=True).copy()
    for column in ("deviation", "low", "high", "tolerance"):
        out[column] = np.nan
    out["outcome"] = str(Outcome.INCONCLUSIVE)
    names = {1: str(Outcome.PASS), 0: str(Outcome.INCONCLUSIVE), -1: str(Outcome.FAIL)}
    for stratum in STRATA:
        here = out["stratum"] == stratum
        n, s, v = (out.loc[here, c].to_numpy(dtype=np.float64) for c in ("n", "s", "v"))
        tolerance = sequences.of(stratum)
        low, high = bounds(n, s, v, tolerance, sequences.pass_alpha)
        out.loc[here, "deviation"] = s / np.where(n > 0, n, np.nan)
        out.loc[here, "low"], out.loc[here, "high"] = low, high
        out.loc[here, "tolerance"] = tolerance
        out.loc[here, "outcome"] = [names[i] for i in sequences.status(stratum, n, s, v).tolist()]
    return worst(Outcome(o) for o in out["outcome"]), out


@equation("equivalence.tolerance.deviation", table=True)
def deviation(table: pd.DataFrame, *, setting: str, stratum: str, feature: str) -> float:
    """Mean of f(x) − E_p f over a stratum, from per-request sufficient statistics.

    Raises:
        EvidenceError: the sequence has no tokens.
    """
    rows = table[
        (table["setting"] == setting)
        & (table["stratum"] == stratum)
        & (table["feature"] == feature)
    ]
    n = int(rows["n"].sum())
    if n == 0:
        raise EvidenceError(
            "has no tokens", field="tolerance", value=f"{setting}, {stratum}, {feature}"
        )
    return float(rows["s"].sum()) / n


def tokens_to_pass(variance: float, tolerance: float) -> float:
    """Median tokens to PASS of exact decoding, 15 v / tol² (measured by simulation)."""
    return 15.0 * variance / tolerance**2


def first_outside(table: pd.DataFrame, sequences: Sequences) -> str | None:
    """First sequence that left its tolerance at any time, from per-request statistics; or None.

    ``table`` has ``request``, ``setting`` and ``COLUMNS``. A FAIL once reached stays: the bounds
    hold at all times together.
    """
    keys = ["setting", "stratum", "feature"]
    ordered = table.sort_values("request", kind="stable", ignore_index=True)
    running = ordered.groupby(keys, sort=False)[["n", "s", "v"]].cumsum()
    found: list[tuple[int, str]] = []
    for stratum in STRATA:
        here = np.flatnonzero((ordered["stratum"] == stratum).to_numpy())
        n, s, v = (running[c].to_numpy(dtype=np.float64)[here] for c in ("n", "s", "v"))
        out = here[sequences.status(stratum, n, s, v) < 0]
        if len(out):
            row = ordered.loc[int(out[0])]
            where = f"{row['feature']} ({stratum}, {row['setting']}), request {row['request']}"
            found.append((int(out[0]), where))
    return min(found)[1] if found else None


def more_tokens(undecided: pd.DataFrame, total: int) -> int:
    """Further tokens until the slowest undecided sequence has its median 15 v / tol².

    ``undecided`` are rows of ``judge``, ``total`` all tokens so far (a sequence gets its share of
    further ones). 0 where nothing is undecided.
    """
    if undecided.empty or total == 0:
        return 0
    n = undecided["n"].to_numpy(dtype=np.float64)
    variance = undecided["v"].to_numpy(dtype=np.float64) / np.maximum(n, 1)
    tolerance = undecided["tolerance"].to_numpy(dtype=np.float64)
    # A sequence past its median needs on the order of as much again: the bound is close.
    lacking = np.maximum(15.0 * variance / tolerance**2 - n, 0.1 * n)
    return int(np.ceil((lacking * total / np.maximum(n, 1)).max()))
