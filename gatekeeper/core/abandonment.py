"""Abandonment curve: how the probability that a task is abandoned rises with its duration.

Logistic regression of ``abandoned`` on the duration (or its logarithm, which makes patience
log-logistic and loses nobody at 0 s), its uncertainty from bootstrap samples of whole sessions:
tasks of one session share a person's patience and a hour's load.

Table ``outcomes``, one row per task: ``duration_s`` (what the task took from request to answer, or
would have taken had the person stayed), ``abandoned`` (0 or 1), ``session``. Durations that end
when the person leaves would make impatience look like speed, and are no use here.

What cannot be fitted is refused with its reason; no curve is ever made up.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special, stats

from gatekeeper.core.claims import Claim, equation
from gatekeeper.core.documents import check
from gatekeeper.core.time_value import TIMES, AbandonmentFit
from gatekeeper.errors import EvidenceError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "MIN_OUTCOMES",
    "MIN_SESSIONS",
    "REPLICATES",
    "SEED",
    "abandoned_share",
    "duration_bands",
    "fit_abandonment",
    "fit_claims",
    "log_likelihood",
    "parameter_interval",
]

MIN_OUTCOMES = 20
"""Fewest abandoned and fewest kept tasks: ten of the rarer outcome for each parameter (Peduzzi and
others 1996)."""

MIN_SESSIONS = 20
"""Fewest sessions: with fewer clusters their bootstrap is known to understate the spread."""

REPLICATES = 1000
SEED = 20240229

_LOST = 0.01
"""Largest share of bootstrap samples without a curve; more means that few sessions carry the fit."""
_STEPS = 30
_CONVERGED = 1e-9
_CELLS = 2_000_000
"""Rows times replicates worked on at once, which bounds the memory."""
_BANDS = 10


def _scaled(time: str, duration_s: Floats | float, at_s: float) -> Floats:
    found: Floats = np.asarray(duration_s, dtype=float)
    return np.log(found) - math.log(at_s) if time == "log_seconds" else found - at_s


def abandoned_share(
    duration_s: Floats | float,
    *,
    time: str,
    at_s: float,
    log_odds: Floats | float,
    slope: Floats | float,
) -> Floats:
    """Probability that a task of ``duration_s`` is abandoned; the arguments broadcast.

    expit(log_odds + slope · (g(duration) − g(at_s))), g as `AbandonmentFit` has it.
    """
    share: Floats = special.expit(log_odds + slope * _scaled(time, duration_s, at_s))
    return share


def fit_abandonment(
    outcomes: pd.DataFrame,
    *,
    data: str,
    time: str = TIMES[0],
    replicates: int = REPLICATES,
    seed: int = SEED,
    rows: Mapping[str, Any] | None = None,
) -> AbandonmentFit:
    """Fit the curve.

    Args:
        outcomes: table as above.
        data: sha256 of the file that it was read from.
        time: what the log odds are linear in, one of ``TIMES``.
        replicates: bootstrap samples of sessions.
        seed: of their random generator.
        rows: ``route``, ``min_concurrency`` and ``max_concurrency`` that the rows were chosen by.

    Raises:
        InputError: a duration or outcome that is none, or a time or number of replicates unknown.
        EvidenceError: too few outcomes or sessions, durations that do not vary or that separate
            the outcomes, or a curve that does not rise.
    """
    check(
        [
            ("time", time, time in TIMES, f"use one of {', '.join(TIMES)}"),
            ("replicates", replicates, replicates >= 100, "use 100 or more"),  # noqa: PLR2004 - a covariance of fewer is noise
        ]
    )
    duration, abandoned, session = _columns(outcomes)
    _refuse_unfit(duration, abandoned, session)
    at_s = float(np.median(duration))
    z = _scaled(time, duration, at_s)
    log_odds, slope, _ = _maximum(z, abandoned)
    if not slope > 0:
        raise EvidenceError(
            "falls: longer tasks were abandoned less often",
            field="outcomes.slope",
            value=f"{slope:.4g}",
            remedy="give each task's whole duration, also where the person left before its end",
        )
    drawn = _resampled(
        z, abandoned, session, start=(log_odds, slope), replicates=replicates, seed=seed
    )
    covariance = np.cov(drawn, rowvar=False)
    between = float(covariance[0, 1])
    return AbandonmentFit(
        time=time,
        at_s=at_s,
        log_odds=log_odds,
        slope=slope,
        covariance=((float(covariance[0, 0]), between), (between, float(covariance[1, 1]))),
        tasks=len(duration),
        abandoned=int(abandoned.sum()),
        sessions=int(session.max()) + 1,
        shortest_s=float(duration.min()),
        longest_s=float(duration.max()),
        replicates=replicates,
        seed=seed,
        data=data,
        **dict(rows or {}),
    )


def parameter_interval(
    fit: AbandonmentFit, parameter: str, confidence: float
) -> tuple[float, float]:
    """Two-sided interval of ``log_odds`` or ``slope``.

    The bootstrap's standard deviation times a t quantile on sessions − 2 degrees of freedom.
    """
    at = ("log_odds", "slope").index(parameter)
    quantile = stats.t.ppf((1 + confidence) / 2, fit.sessions - 2)
    half = float(quantile) * math.sqrt(fit.covariance[at][at])
    middle = float(getattr(fit, parameter))
    return middle - half, middle + half


@equation("value.abandonment", table=True)
def abandonment(
    outcomes: pd.DataFrame, *, time: str, replicates: int, seed: int, figure: str
) -> float:
    """One figure of the fit: ``log_odds``, ``slope``, ``at_s`` or ``covariance.<row><column>``."""
    found = fit_abandonment(
        outcomes, data="0" * 64, time=time, replicates=int(replicates), seed=int(seed)
    )
    return _figures(found)[figure]


def _figures(fit: AbandonmentFit) -> dict[str, float]:
    (a, b), (_, d) = fit.covariance
    values = {"at_s": fit.at_s, "log_odds": fit.log_odds, "slope": fit.slope}
    return {**values, "covariance.00": a, "covariance.01": b, "covariance.11": d}


def fit_claims(fit: AbandonmentFit) -> tuple[Claim, ...]:
    """Claims of a fit's figures, which recompute from the outcomes' table."""
    units = {"at_s": "s", "log_odds": "log odds"}
    inputs = {"time": fit.time, "replicates": fit.replicates, "seed": fit.seed}
    return tuple(
        Claim(
            id=f"abandonment/{fit.data[:12]}/{name}",
            equation="value.abandonment",
            inputs={"table": "outcomes", "evidence": fit.data, **inputs, "figure": name},
            value=value,
            unit=units.get(name, "log odds per unit of time, or squared"),
            status="estimated",
            source="abandonment curve fitted from outcomes",
        )
        for name, value in _figures(fit).items()
    )


def log_likelihood(outcomes: pd.DataFrame, time: str) -> float:
    """Log likelihood of the curve with that time: of two, the greater describes the tasks better.

    Raises:
        InputError, EvidenceError: as ``fit_abandonment``.
    """
    duration, abandoned, session = _columns(outcomes)
    _refuse_unfit(duration, abandoned, session)
    return _maximum(_scaled(time, duration, float(np.median(duration))), abandoned)[2]


def duration_bands(outcomes: pd.DataFrame, fit: AbandonmentFit) -> list[dict[str, float]]:
    """Observed beside fitted abandonment in up to ten bands of as many tasks each.

    Tasks of one duration share a band. ``observed`` and ``fitted`` are shares of ``tasks``.
    """
    duration, abandoned, _ = _columns(outcomes)
    edges = np.unique(np.quantile(duration, np.linspace(0, 1, _BANDS + 1), method="lower"))
    inner = edges[1:-1]
    band = np.searchsorted(inner, duration, side="right")
    curve = {n: getattr(fit, n) for n in ("time", "at_s", "log_odds", "slope")}
    fitted = abandoned_share(duration, **curve)
    return [
        {
            "from_s": float(duration[mine].min()),
            "to_s": float(duration[mine].max()),
            "tasks": int(mine.sum()),
            "abandoned": int(abandoned[mine].sum()),
            "observed": float(abandoned[mine].mean()),
            "fitted": float(fitted[mine].mean()),
        }
        for mine in (band == index for index in range(len(inner) + 1))
        if mine.any()
    ]


def _columns(outcomes: pd.DataFrame) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Durations, outcomes and numbered sessions, each checked."""
    for name in ("duration_s", "abandoned", "session"):
        if name not in outcomes:
            raise InputError("is missing", field=f"outcomes.{name}", remedy="give every column")
    duration = outcomes["duration_s"].to_numpy(float)
    abandoned = outcomes["abandoned"].to_numpy(float)
    for name, values, good, remedy in (
        ("duration_s", duration, np.isfinite(duration) & (duration > 0), "use seconds above 0"),
        ("abandoned", abandoned, np.isin(abandoned, (0, 1)), "use 0 or 1"),
    ):
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise InputError(
                "is not usable",
                field=f"outcomes.{name}",
                value=f"{values[row]} in row {row + 1}",
                remedy=remedy,
            )
    _, session = np.unique(outcomes["session"].to_numpy(str), return_inverse=True)
    return duration, abandoned, session.astype(np.int64)


def _refuse_unfit(duration: Floats, abandoned: Floats, session: NDArray[np.int64]) -> None:
    """Raise ``EvidenceError`` where no curve could mean anything."""
    lost, kept = duration[abandoned == 1], duration[abandoned == 0]
    sessions = int(session.max(initial=-1)) + 1
    for what, number, least in (
        ("abandoned", len(lost), MIN_OUTCOMES),
        ("kept", len(kept), MIN_OUTCOMES),
        ("sessions", sessions, MIN_SESSIONS),
    ):
        if number < least:
            tasks = what if what == "sessions" else f"{what} tasks"
            raise EvidenceError(
                f"are too few {tasks} for a curve",
                field=f"outcomes.{what}",
                value=number,
                remedy=f"record outcomes until there are {least}",
            )
    if duration.min() == duration.max():
        raise EvidenceError(
            "does not vary, so nothing can be learnt of it",
            field="outcomes.duration_s",
            value=float(duration[0]),
            remedy="record tasks of different durations",
        )
    if lost.min() >= kept.max() or kept.min() >= lost.max():
        raise EvidenceError(
            "separates kept from abandoned tasks, so no finite curve fits",
            field="outcomes.duration_s",
            value=f"kept {kept.min():g} to {kept.max():g} s, "
            f"abandoned {lost.min():g} to {lost.max():g} s",
            remedy="record what people did, not a timeout's verdict; or more outcomes",
        )


def _maximum(z: Floats, abandoned: Floats) -> tuple[float, float, float]:
    """Maximum likelihood estimates of log odds and slope, and the log likelihood."""
    # imported late: statsmodels takes seconds, and pricing needs only the curve
    from statsmodels.discrete.discrete_model import Logit  # noqa: PLC0415
    from statsmodels.tools.sm_exceptions import ModelWarning  # noqa: PLC0415

    scale = float(np.abs(z).max())
    design = np.column_stack(
        [np.ones_like(z), z / scale]
    )  # scaled, so that Newton's steps are tame
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ModelWarning)
            warnings.simplefilter("error", RuntimeWarning)
            found = Logit(abandoned, design).fit(disp=0, method="newton", maxiter=100, tol=1e-10)
    except (ModelWarning, RuntimeWarning, np.linalg.LinAlgError) as error:
        raise _no_maximum(str(error)) from error
    log_odds, slope = float(found.params[0]), float(found.params[1]) / scale
    if not (found.mle_retvals["converged"] and math.isfinite(log_odds) and math.isfinite(slope)):
        raise _no_maximum("no convergence")
    return log_odds, slope, float(found.llf)


def _no_maximum(why: str) -> EvidenceError:
    return EvidenceError(
        f"gives no finite curve ({' '.join(why.split())})",
        field="outcomes",
        remedy="record more outcomes over more durations",
    )


def _resampled(
    z: Floats,
    abandoned: Floats,
    session: NDArray[np.int64],
    *,
    start: tuple[float, float],
    replicates: int,
    seed: int,
) -> Floats:
    """Estimates on bootstrap samples of whole sessions, shape [samples, 2].

    Newton's method from the estimate on all sessions, all samples of a chunk at once: the same
    likelihood as ``_maximum``, a sample being integer weights.
    """
    rng, n = np.random.default_rng(seed), int(session.max()) + 1
    chunk = max(1, _CELLS // len(z))
    found = []
    for begin in range(0, replicates, chunk):
        size = min(chunk, replicates - begin)
        times = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(size)])
        found.append(_newton(z, abandoned, times[:, session].astype(float), start))
    every = np.concatenate(found)
    known = every[np.isfinite(every).all(axis=1)]
    lost = replicates - len(known)
    if lost > _LOST * replicates:
        raise EvidenceError(
            "rests on few sessions: as many bootstrap samples of them have no curve",
            field="outcomes.sessions",
            value=f"{lost} of {replicates}",
            remedy="record more sessions with abandoned and with kept tasks",
        )
    return known


def _newton(z: Floats, abandoned: Floats, weight: Floats, start: tuple[float, float]) -> Floats:
    """Weighted estimates, shape [samples, 2]; NaN where there is none."""
    theta = np.tile(np.asarray(start, dtype=float), (len(weight), 1))
    scale = np.array([1.0, np.abs(z).max()])
    powers = np.column_stack([np.ones_like(z), z, z * z])
    going = np.arange(len(weight))
    for _ in range(_STEPS):
        share = special.expit(theta[going, :1] + theta[going, 1:] * z)
        slack = weight[going] * (abandoned - share)
        gradient = slack @ powers[:, :2]
        curvature = (weight[going] * share * (1 - share)) @ powers
        aa, ab, bb = curvature.T
        det = aa * bb - ab * ab
        with np.errstate(divide="ignore", invalid="ignore"):
            step = (
                np.column_stack(
                    [
                        bb * gradient[:, 0] - ab * gradient[:, 1],
                        aa * gradient[:, 1] - ab * gradient[:, 0],
                    ]
                )
                / det[:, None]
            )
        theta[going] += step
        size = np.abs(step * scale).max(axis=1)
        going = going[~(size <= _CONVERGED * (1 + np.abs(theta[going] * scale).max(axis=1)))]
        going = going[np.isfinite(theta[going]).all(axis=1)]
        if not len(going):
            break
    theta[going] = np.nan  # still moving: separated, or nearly
    return theta
