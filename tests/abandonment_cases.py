"""Simulated outcomes whose abandonment curve is known, and economics that price by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

TYPICAL_S = 8.0


def outcomes(
    seed: int,
    *,
    sessions: int = 150,
    tasks: int = 6,
    log_odds: float = -1.5,
    slope: float = 1.2,
    alike: float = 0.3,
    time: str = "log_seconds",
) -> pd.DataFrame:
    """Tasks whose log odds of being abandoned are ``log_odds`` at 8 s and rise by ``slope``.

    Durations and outcomes of a session are alike: the outcomes through a Gaussian copula, which
    leaves each task's own probability exactly what the curve says.
    """
    rng = np.random.default_rng(seed)
    session = np.repeat(np.arange(sessions), tasks)
    spread = 0.5 * rng.normal(size=sessions)[session] + 0.6 * rng.normal(size=len(session))
    duration = TYPICAL_S * np.exp(spread)
    shared = rng.normal(size=sessions)[session]
    drawn = np.sqrt(alike) * shared + np.sqrt(1 - alike) * rng.normal(size=len(session))
    distance = np.log(duration / TYPICAL_S) if time == "log_seconds" else duration - TYPICAL_S
    leaves = stats.norm.cdf(drawn) < special.expit(log_odds + slope * distance)
    return pd.DataFrame(
        {"duration_s": duration, "abandoned": leaves.astype(int), "session": session}
    )


FIT: dict[str, Any] = {
    "time": "log_seconds",
    "at_s": 5.0,
    "log_odds": -1.5,
    "slope": 1.2,
    "covariance": [[0.017, -0.007], [-0.007, 0.018]],
    "tasks": 900,
    "abandoned": 190,
    "sessions": 150,
    "shortest_s": 0.5,
    "longest_s": 60.0,
    "replicates": 1000,
    "seed": 1,
    "data": "d" * 64,
}


def abandonment(worth: float | None = 0.4, **changes: Any) -> dict[str, Any]:
    """A rule of ``value_of_time`` by a fitted curve."""
    curve: dict[str, Any] = {"fit": {**FIT, **changes}}
    if worth is not None:
        curve["value_of_kept_task"] = worth
    return {"abandonment": curve}


def pieces(*pairs: tuple[float, float]) -> dict[str, Any]:
    """A rule of ``value_of_time`` by pieces (from_s, per_s)."""
    return {"piecewise": [{"from_s": start, "per_s": rate} for start, rate in pairs]}
