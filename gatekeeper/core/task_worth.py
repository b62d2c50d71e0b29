"""What saved seconds are worth where a second's price depends on how long the task takes.

A saving is turned into value at each task's own duration, before and after, never at the mean: the
cost of a task's time is curved, and its mean is not its value at the mean.

Equations over the ``curves`` table of `gatekeeper.core.task_savings`. ``price`` is either
``{"pieces": [[from_s, per_s], …]}``, in money, or the fitted curve of an abandonment
(``fit_inputs``), whose unit is tasks kept per task: the caller multiplies by the value of a kept
task. A fitted curve is drawn anew in each replicate, as far as its covariance says.

Outside the durations that a curve was fitted on, a saving is worth nothing and a loss what the curve
says: nobody saw that faster tasks are kept there, and harm is not argued away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from gatekeeper.core.abandonment import abandoned_share
from gatekeeper.core.claims import equation
from gatekeeper.core.task_savings import (
    MIN_SESSIONS,
    SavedSeconds,
    TaskCurves,
    first_token_draws,
    read_curves,
    times_drawn,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    from gatekeeper.core.time_value import AbandonmentFit, Piece

    Floats = NDArray[np.float64]

__all__ = ["fit_inputs", "outside", "piece_inputs", "worth", "worth_ceiling", "worth_interval"]

_CELLS = 250_000
"""Tasks times replicates worked on at once: a few arrays of that size stay in a core's cache."""


def piece_inputs(pieces: tuple[Piece, ...]) -> dict[str, Any]:
    """Prices per piece as an equation's input."""
    return {"pieces": [[piece.from_s, piece.per_s] for piece in pieces]}


def fit_inputs(fit: AbandonmentFit) -> dict[str, Any]:
    """All that an equation needs of a fit, and the digest of its data."""
    names = ("time", "at_s", "log_odds", "slope", "sessions", "shortest_s", "longest_s", "data")
    found = {name: getattr(fit, name) for name in names}
    return {**found, "covariance": [list(row) for row in fit.covariance]}


@dataclass(frozen=True)
class _Cost:
    """Cost of a task's time, and as many versions of it as there are replicates."""

    price: Mapping[str, Any]
    drawn: Floats | None
    """Log odds and slope by replicate, shape [replicates, 2]; None where the price is stated."""

    @classmethod
    def of(cls, price: Mapping[str, Any], rng: np.random.Generator, replicates: int) -> _Cost:
        if "pieces" in price:
            return cls(price, None)
        # a t with the degrees of freedom that the sessions leave, as for any clustered estimate
        freedom = int(price["sessions"]) - 2
        centre = np.array([price["log_odds"], price["slope"]], dtype=float)
        values, vectors = np.linalg.eigh(np.array(price["covariance"], dtype=float))
        root = vectors * np.sqrt(np.clip(values, 0, None))
        normal = rng.standard_normal((replicates, 2)) @ root.T
        chi = rng.chisquare(freedom, (replicates, 1)) / freedom
        return cls(price, centre + normal / np.sqrt(chi))

    def saved(self, before: Floats, after: Floats, part: slice | None) -> Floats:
        """Cost before less cost after, shape of ``after``; ``part`` chooses replicates, or none."""
        if "pieces" in self.price:
            starts, rates = np.array(self.price["pieces"], dtype=float).T
            return _area(starts, rates, before) - _area(starts, rates, after)
        low, high = self.price["shortest_s"], self.price["longest_s"]
        gain = after <= before
        first = np.where(gain, np.clip(before, low, high), before)
        last = np.where(gain, np.clip(after, low, high), after)
        return self._share(first, part) - self._share(last, part)

    def _share(self, duration: Floats, part: slice | None) -> Floats:
        odds, slope = self.price["log_odds"], self.price["slope"]
        if part is not None and self.drawn is not None:
            odds, slope = self.drawn[part, :1], self.drawn[part, 1:]
        time, at_s = self.price["time"], self.price["at_s"]
        return abandoned_share(duration, time=time, at_s=at_s, log_odds=odds, slope=slope)


def _area(starts: Floats, rates: Floats, duration: Floats) -> Floats:
    """Money for a duration: the integral of the price per second up to it."""
    before = np.concatenate([[0.0], np.cumsum(np.diff(starts) * rates[:-1])])
    piece = np.clip(np.searchsorted(starts, duration, side="right") - 1, 0, None)
    cost: Floats = before[piece] + (duration - starts[piece]) * rates[piece]
    return cost


def worth_interval(
    curves: pd.DataFrame | TaskCurves,
    *,
    price: Mapping[str, Any],
    log_ratio: float,
    sd: float,
    pairs: int,
    confidence: float,
    ttft_s: float,
    ttft_ratio: Mapping[str, float],
    replicates: int,
    rng: np.random.Generator,
    log_ttft: Mapping[str, float] | None = None,
) -> SavedSeconds | None:
    """Mean over tasks of their own saving in cost, by the bootstrap of ``saved_seconds``.

    In each replicate the speed-up, the fitted curve and the sessions are drawn anew, and each
    task's duration becomes T(1 / speed-up) plus what is added before its first tokens (its calls ·
    ``ttft_s`` · (``ttft_ratio`` − 1), never less than 0). The ends draw that ratio together with the
    speed-up where ``log_ttft`` says how (`first_token_draws`); else ``low`` of the result takes the
    ratio's ``high``, which covers any dependence and is wider.

    Returns:
        As ``saved_seconds``, in the unit of ``price``.

    Raises:
        InputError: fewer than two pairs, or curves that are not over one grid with 1 in it.
    """
    if pairs < 2 or sd < 0:  # noqa: PLR2004 - a t needs a degree of freedom
        raise InputError("has no spread", field="pairs", value=(pairs, sd), remedy="run more pairs")
    found = read_curves(curves)
    if found is None or found.sessions < MIN_SESSIONS:
        return None
    n, tasks = found.sessions, len(found.wall)
    stretch = math.sqrt(n / (n - 1)) * stats.t.ppf(confidence, n - 1) / stats.norm.ppf(confidence)
    t = rng.standard_t(pairs - 1, replicates)
    draws = log_ratio + sd / math.sqrt(pairs) * t
    late = None
    if log_ttft is not None:
        late = ttft_s * np.maximum(first_token_draws(t, pairs, log_ttft, rng) - 1, 0.0)
    cost = _Cost.of(price, rng, replicates)
    size = np.bincount(found.session, minlength=n).astype(float)
    added = {end: found.calls * ttft_s * max(ratio - 1, 0.0) for end, ratio in ttft_ratio.items()}
    ends = [
        (found.saved, added["value"]),
        (found.low, added["high"]),
        (found.high, added["low"]),
    ]
    sure = np.array_equal(found.low, found.high)  # grades A and B: one makespan for all three ends
    same = [False, *(np.array_equal(ends[row][1], ends[row - 1][1]) for row in (1, 2))]
    if late is not None:
        same = [False, False, True]  # low and high take the same draws
    drawn = np.empty((3, replicates))
    chunk = max(1, _CELLS // tasks)
    for begin in range(0, replicates, chunk):
        part = slice(begin, min(begin + chunk, replicates))
        weights = times_drawn(rng, n, part.stop - begin)
        count, weight = weights @ size, weights[:, found.session]
        x = np.exp(-draws[part])
        for row, (saved, stated) in enumerate(ends):
            harm = stated
            if row and late is not None:
                harm = late[part, None] * found.calls
            if row and sure and same[row]:
                drawn[row, part] = drawn[row - 1, part]
                continue
            after = found.wall - _at(found.x, saved, x) + harm
            each = cost.saved(found.wall, after, part)
            centre = each.mean(axis=1)
            means = np.einsum("rt,rt->r", weight, each) / count
            drawn[row, part] = centre + stretch * (means - centre)
    value = float(drawn[0].mean())
    low = float(np.quantile(drawn[1], 1 - confidence))
    high = float(np.quantile(drawn[2], confidence))
    return SavedSeconds(value, min(low, value), max(high, value))


def _at(x: Floats, values: Floats, points: Floats) -> Floats:
    """Piecewise linear values of every task at each point, shape [points, tasks]."""
    left = np.clip(np.searchsorted(x, points, "right") - 1, 0, len(x) - 2)
    share = np.clip((points - x[left]) / np.diff(x)[left], 0, 1)[:, None]
    columns = values.T
    read: Floats = (1 - share) * columns[left] + share * columns[left + 1]
    return read


@equation("value.worth", table=True)
def worth(
    curves: pd.DataFrame,
    *,
    price: Mapping[str, Any],
    log_ratio: float,
    sd: float,
    pairs: int,
    confidence: float,
    ttft_s: float,
    ttft_ratio: Mapping[str, float],
    replicates: int,
    seed: int,
    end: str,
    log_ttft: Mapping[str, float] | None = None,
) -> float | None:
    """``worth_interval`` as one figure: ``end`` is ``value``, ``low`` or ``high``."""
    found = worth_interval(
        curves,
        price=price,
        log_ratio=log_ratio,
        sd=sd,
        pairs=int(pairs),
        confidence=confidence,
        ttft_s=ttft_s,
        ttft_ratio=ttft_ratio,
        replicates=int(replicates),
        rng=np.random.default_rng(seed),
        log_ttft=log_ttft,
    )
    return (
        None
        if found is None
        else {
            "value": found.value,
            "low": found.low,
            "high": found.high,
        }[end]
    )


@equation("value.worth_ceiling", table=True)
def worth_ceiling(curves: pd.DataFrame, *, price: Mapping[str, Any]) -> float | None:
    """Mean saving in cost per task if decoding took no time at all; None without tasks."""
    found = read_curves(curves)
    if found is None:
        return None
    after = found.wall - found.saved[:, 0]
    cost = _Cost(price, None)
    return float(cost.saved(found.wall, after, None).mean())


@equation("value.outside", table=True)
def outside(curves: pd.DataFrame, *, shortest_s: float, longest_s: float) -> float:
    """Number of tasks shorter or longer than every task that a curve was fitted on."""
    found = read_curves(curves)
    if found is None:
        return 0.0
    return float(((found.wall < shortest_s) | (found.wall > longest_s)).sum())
