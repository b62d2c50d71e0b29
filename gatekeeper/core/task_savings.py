"""Seconds that faster decoding takes off a route's tasks, with an interval over sessions.

Equations over the ``curves`` table, one row per complete task: ``task``, ``version``, ``session``
(the cluster), ``calls``, ``grade``, ``reconciled``, ``wall_s``, ``decode_on_path_s``, ``x`` (list: the
grid of decode-time factors, 1 / speed-up), ``makespan_s`` (list over ``x``; at 1 the observation),
``makespan_low_s`` and ``makespan_high_s`` (the same under the edges of an estimated decode time).

Makespans are convex and piecewise linear in x; reading them off a chord overstates the makespan
and so understates the saving. Tasks of grade D, unreconciled tasks and tasks without a curve (their
timings are not trusted: empty lists) are in the table and never in a figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from gatekeeper.core.claims import equation
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "COLUMNS",
    "MIN_SESSIONS",
    "SavedSeconds",
    "TaskCurves",
    "ceiling",
    "excluded",
    "first_token_draws",
    "mean_of",
    "net_saved",
    "read_curves",
    "repeated",
    "saved",
    "saved_seconds",
    "sessions",
    "speedup_needed",
    "tasks",
    "times_drawn",
]

COLUMNS = (
    "task",
    "version",
    "session",
    "calls",
    "grade",
    "reconciled",
    "wall_s",
    "decode_on_path_s",
    "x",
    "makespan_s",
    "makespan_low_s",
    "makespan_high_s",
)

MIN_SESSIONS = 5
"""Fewest sessions whose spread says anything: a resample of fewer is one of a handful of values."""

_CHUNK = 250
"""Replicates resampled at once, which bounds the memory for thousands of sessions."""


@dataclass(frozen=True)
class SavedSeconds:
    """Mean seconds saved per task with one-sided bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class TaskCurves:
    """Savings of the priced tasks over the grid ``x``, shape [tasks, points] each.

    ``wall`` (seconds as observed), ``calls`` and ``session`` (numbered from 0) have shape [tasks].
    """

    x: Floats
    wall: Floats
    calls: Floats
    saved: Floats
    low: Floats
    high: Floats
    session: NDArray[np.int64]
    sessions: int


def excluded(curves: pd.DataFrame) -> dict[str, int]:
    """Number of tasks left out of every figure, by reason."""
    reasons = _reasons(curves)
    return {name: reasons.count(name) for name in sorted(set(reasons)) if name}


def _reasons(curves: pd.DataFrame) -> list[str]:
    """Why each task is left out; empty for those that are priced."""
    columns = (curves["grade"], curves["reconciled"], curves["x"])
    found = []
    for grade, reconciled, x in zip(*columns, strict=True):
        if grade == "D":
            found.append("grade D")
        elif not reconciled:
            found.append("unreconciled")
        else:
            found.append("" if len(x) else "untrusted timings")
    return found


def _priced(curves: pd.DataFrame) -> pd.DataFrame:
    return curves[[not reason for reason in _reasons(curves)]]


@equation("value.tasks", table=True)
def tasks(curves: pd.DataFrame) -> float:
    """Number of tasks that figures rest on."""
    return float(len(_priced(curves)))


@equation("value.sessions", table=True)
def sessions(curves: pd.DataFrame) -> float:
    """Number of sessions that figures rest on."""
    return float(_priced(curves)["session"].nunique())


@equation("value.task_mean", table=True)
def mean_of(curves: pd.DataFrame, *, column: str) -> float | None:
    """Mean per task of ``calls``, ``wall_s`` or ``decode_on_path_s``; None without tasks."""
    rows = _priced(curves)
    return float(rows[column].to_numpy(float).mean()) if len(rows) else None


@equation("value.ceiling", table=True)
def ceiling(curves: pd.DataFrame) -> float | None:
    """Mean seconds per task that decoding in no time at all would save; None without tasks."""
    found = read_curves(curves)
    return None if found is None else float(_at(found.x, found.saved.mean(axis=0), 0.0))


def saved_seconds(
    curves: pd.DataFrame | TaskCurves,
    *,
    log_ratio: float,
    sd: float,
    pairs: int,
    confidence: float,
    replicates: int,
    rng: np.random.Generator,
    ttft_s: float = 0.0,
    log_ttft: Mapping[str, float] | None = None,
) -> SavedSeconds | None:
    """Cluster bootstrap of the mean saving per task, the speed-up drawn anew in each replicate.

    Sessions are resampled whole (tasks of one session share its text, tools and hour). The log of
    the speed-up is ``log_ratio`` + ``sd`` / √pairs · t with pairs − 1 degrees of freedom, and the
    saving is read at x = 1 / speed-up: T is convex, so the saving at the mean ratio would
    overstate the mean saving. Resampled deviations are stretched by √(n / (n − 1)) · t / z, n
    sessions, which repairs the narrowness of few clusters (Hesterberg 2015, section 4.3, applied
    to the deviations so that the ratio's own t is not widened twice). Estimated decode times widen
    the ends through their edges.

    With ``log_ttft`` (``mean``, ``sd`` and ``correlation`` of `first_token_draws`) the seconds are
    net of those added before first tokens: calls · ``ttft_s`` · (ratio − 1), never less than 0, the
    ratio drawn together with the speed-up and the calls with the sessions.

    Returns:
        Mean over replicates, and the quantiles 1 − ``confidence`` and ``confidence``; None for
        fewer than ``MIN_SESSIONS`` sessions.

    Raises:
        InputError: fewer than two pairs, or curves that are not over one grid with 1 in it.
    """
    if pairs < 2 or sd < 0:  # noqa: PLR2004 - a t needs a degree of freedom
        raise InputError("has no spread", field="pairs", value=(pairs, sd), remedy="run more pairs")
    found = read_curves(curves)
    if found is None or found.sessions < MIN_SESSIONS:
        return None
    n = found.sessions
    stretch = math.sqrt(n / (n - 1)) * stats.t.ppf(confidence, n - 1) / stats.norm.ppf(confidence)
    t = rng.standard_t(pairs - 1, replicates)
    x = np.exp(-(log_ratio + sd / math.sqrt(pairs) * t))
    late = np.zeros(replicates)
    if log_ttft is not None:
        late = ttft_s * np.maximum(first_token_draws(t, pairs, log_ttft, rng) - 1, 0.0)
    called = _by_session(found.session, n, found.calls[:, None])[:, 0]
    size = np.bincount(found.session, minlength=n).astype(float)
    left = np.clip(np.searchsorted(found.x, x, "right") - 1, 0, len(found.x) - 2)
    near = slice(int(left.min()), int(left.max()) + 2)  # the points that any draw lies between
    share = np.clip((x - found.x[left]) / np.diff(found.x)[left], 0, 1)
    edges = [values[:, near] for values in (found.saved, found.low, found.high)]
    sums = [_by_session(found.session, n, values) for values in edges]
    drawn = np.empty((3, replicates))
    for begin in range(0, replicates, _CHUNK):
        part = slice(begin, min(begin + _CHUNK, replicates))
        weights = times_drawn(rng, n, part.stop - begin)
        count = (weights @ size)[:, None]
        mean_calls = found.calls.mean()
        calls = mean_calls + stretch * ((weights @ called) / count[:, 0] - mean_calls)
        harm = np.maximum(calls, 0.0) * late[part]
        rows, column, right = np.arange(len(weights)), left[part] - near.start, share[part]
        for edge, (total, values) in enumerate(zip(sums, edges, strict=True)):
            centre = values.mean(axis=0)
            means = centre + stretch * ((weights @ total) / count - centre)
            read = (1 - right) * means[rows, column] + right * means[rows, column + 1]
            drawn[edge, part] = read - harm
    value = float(drawn[0].mean())
    low = float(np.quantile(drawn[1], 1 - confidence))
    high = float(np.quantile(drawn[2], confidence))
    return SavedSeconds(value, min(low, value), max(high, value))


def first_token_draws(
    t: Floats, pairs: int, log_ttft: Mapping[str, float], rng: np.random.Generator
) -> Floats:
    """Ratios of times to the first token, drawn together with ``t``, those of the log speed-up.

    The two log ratios of a block pair are bivariate normal, so their means have a bivariate t with
    pairs − 1 = ν degrees of freedom; given t, the other coordinate is ρ t +
    √((1 − ρ²) (ν + t²) / (ν + 1)) · t', t' with ν + 1 (Ding 2016). Their draws come from a stream
    of their own: those of ``rng`` stay as they are without them.
    """
    freedom, rho = pairs - 1, log_ttft["correlation"]
    (other,) = rng.spawn(1)
    spread = np.sqrt((1 - rho**2) * (freedom + t**2) / (freedom + 1))
    both = rho * t + spread * other.standard_t(freedom + 1, len(t))
    ratios: Floats = np.exp(log_ttft["mean"] + log_ttft["sd"] / math.sqrt(pairs) * both)
    return ratios


@equation("value.saved", table=True)
def saved(
    curves: pd.DataFrame,
    *,
    log_ratio: float,
    sd: float,
    pairs: int,
    confidence: float,
    replicates: int,
    seed: int,
    end: str,
) -> float | None:
    """``saved_seconds`` as one figure: ``end`` is ``value``, ``low`` or ``high``."""
    found = saved_seconds(
        curves,
        log_ratio=log_ratio,
        sd=sd,
        pairs=int(pairs),
        confidence=confidence,
        replicates=replicates,
        rng=np.random.default_rng(seed),
    )
    if found is None:
        return None
    return {"value": found.value, "low": found.low, "high": found.high}[end]


@equation("value.net_saved_drawn", table=True)
def net_saved(
    curves: pd.DataFrame,
    *,
    log_ratio: float,
    sd: float,
    pairs: int,
    confidence: float,
    ttft_s: float,
    log_ttft: Mapping[str, float],
    replicates: int,
    seed: int,
    estimate: float,
    end: str,
) -> float | None:
    """``saved_seconds`` net of first tokens as one figure: ``end`` is ``low`` or ``high``.

    Neither leaves out ``estimate``, the net seconds at the ratios' own estimates.
    """
    found = saved_seconds(
        curves,
        log_ratio=log_ratio,
        sd=sd,
        pairs=int(pairs),
        confidence=confidence,
        replicates=int(replicates),
        rng=np.random.default_rng(seed),
        ttft_s=ttft_s,
        log_ttft=log_ttft,
    )
    if found is None:
        return None
    return {"low": min(found.low, estimate), "high": max(found.high, estimate)}[end]


@equation("value.speedup_needed", table=True)
def speedup_needed(curves: pd.DataFrame, *, saved_s: float) -> float | None:
    """Speed-up of decoding at which a task saves ``saved_s`` on average; None beyond the ceiling."""
    found = read_curves(curves)
    if found is None:
        return None
    inside = found.x <= 1
    x, mean = found.x[inside], found.saved.mean(axis=0)[inside]
    order = np.argsort(x)[::-1]  # savings rise as x falls
    x, mean = x[order], np.maximum.accumulate(mean[order])
    if saved_s >= mean[-1]:
        return None
    return 1 / float(np.interp(saved_s, mean, x)) if saved_s > 0 else 1.0


def read_curves(curves: pd.DataFrame | TaskCurves) -> TaskCurves | None:
    """Read the tasks that figures rest on; None where there are none. What was read stays as it is.

    Raises:
        InputError: curves that are not finite or not over one grid from 0 that holds 1.
    """
    if isinstance(curves, TaskCurves):
        return curves
    rows = _priced(curves)
    if rows.empty:
        return None
    grids = {tuple(np.asarray(x, dtype=float).tolist()) for x in rows["x"]}
    x = np.array(sorted(next(iter(grids))))
    if len(grids) != 1 or 1.0 not in x or x[0] != 0:
        raise InputError(
            "are not over one grid from 0 that holds 1",
            field="curves.x",
            value=len(grids),
            remedy="compute the curves again",
        )
    order = np.argsort(np.asarray(rows["x"].iloc[0], dtype=float))
    at_one = int(np.flatnonzero(x == 1.0)[0])
    makespans = [
        np.array([np.asarray(v, dtype=float)[order] for v in rows[name]])
        for name in ("makespan_s", "makespan_low_s", "makespan_high_s")
    ]
    every = [times[:, [at_one]] - times for times in makespans]
    names = rows["session"].to_numpy(str)
    known, session = np.unique(names, return_inverse=True)
    stacked = np.stack(every)
    if not np.isfinite(stacked).all():
        raise InputError("is not finite", field="curves", remedy="compute the curves again")
    return TaskCurves(
        x,
        makespans[0][:, at_one],
        rows["calls"].to_numpy(float),
        every[0],
        stacked.min(axis=0),
        stacked.max(axis=0),
        session,
        len(known),
    )


def repeated(curves: TaskCurves, times: int) -> TaskCurves:
    """``times`` as many tasks like these, in as many times the sessions."""
    shift = np.repeat(np.arange(times) * curves.sessions, len(curves.session))
    return TaskCurves(
        curves.x,
        np.tile(curves.wall, times),
        np.tile(curves.calls, times),
        np.tile(curves.saved, (times, 1)),
        np.tile(curves.low, (times, 1)),
        np.tile(curves.high, (times, 1)),
        np.tile(curves.session, times) + shift,
        times * curves.sessions,
    )


def times_drawn(rng: np.random.Generator, n: int, replicates: int) -> Floats:
    """How often each of n sessions is drawn in n draws, shape [replicates, n]."""
    drawn = rng.integers(0, n, (replicates, n)) + n * np.arange(replicates)[:, None]
    counts: Floats = np.bincount(drawn.ravel(), minlength=n * replicates).astype(float)
    return counts.reshape(replicates, n)


def _by_session(session: NDArray[np.int64], n: int, values: Floats) -> Floats:
    """Sum of the rows of each session, shape [n, points]."""
    total: Floats = np.zeros((n, values.shape[1]))
    np.add.at(total, session, values)
    return total


def _at(x: Floats, values: Floats, point: float) -> float:
    """Piecewise linear value; beyond the grid the last point holds."""
    return float(np.interp(point, x, values))
