"""Watched at will and run again: an artifact just outside its tolerance, and an exact one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gatekeeper.core.stats.tolerance import FEATURES, Sequences

CHECKED_EVERY = 32
"""Tokens: whoever watches looks after each request."""


@dataclass(frozen=True)
class FalsePasses:
    """Shares of runs that ever said PASS: the same sequence continued, or a new one each time."""

    continued: float
    restarted: float


def false_passes(
    rng: np.random.Generator,
    *,
    runs: int,
    reruns: int,
    tolerance: float = 0.05,
    mean: float = 0.05,
    budget: int = 3200,
) -> FalsePasses:
    """The mean of one feature lies exactly ``tolerance`` above what the target expects.

    It is the least deviation that must not pass, and so the likeliest to. ``mean`` is what
    the target expects of it; each run spends ``budget`` tokens, and FAIL ends it for good.
    """
    declared = Sequences(tolerance, tolerance, 0.05, 0.001, 2 * len(FEATURES))
    checks = budget // CHECKED_EVERY
    hits = rng.binomial(CHECKED_EVERY, mean + tolerance, (runs, reruns, checks))
    continued = _passed(hits.reshape(runs, 1, -1), mean, declared)
    return FalsePasses(float(continued.mean()), float(_passed(hits, mean, declared).mean()))


@dataclass(frozen=True)
class FalseAlarms:
    """Shares of exact artifacts that ever alarmed: one process over all runs, or a new one each time."""

    continued: float
    restarted: float


def false_alarms(
    rng: np.random.Generator,
    *,
    runs: int,
    reruns: int,
    alpha: float,
    mean: float = 0.3,
    suspected: float = 0.4,
    budget: int = 640,
) -> FalseAlarms:
    """Exact tokens: one event comes as often as the target says (``mean``).

    The e-process is the likelihood ratio of an event ``suspected`` to come more often, of all tests
    the one that comes closest to its bound; each run spends ``budget`` tokens.
    """
    checks = budget // CHECKED_EVERY
    hits = rng.binomial(CHECKED_EVERY, mean, (runs, reruns, checks))
    log_f = hits * np.log(suspected / mean)
    log_f += (CHECKED_EVERY - hits) * np.log((1 - suspected) / (1 - mean))
    continued = np.cumsum(log_f.reshape(runs, -1), axis=1).max(axis=1)
    restarted = np.cumsum(log_f, axis=2).max(axis=(1, 2))
    limit = np.log(1 / alpha)
    return FalseAlarms(float((continued >= limit).mean()), float((restarted >= limit).mean()))


def _passed(hits: np.ndarray, mean: float, declared: Sequences) -> np.ndarray:
    """Whether a run says PASS in any of its sequences before one says FAIL; [runs]."""
    seen = np.cumsum(hits, axis=2)
    n = np.arange(1, hits.shape[2] + 1) * CHECKED_EVERY
    missed = n - seen
    s = seen * (1 - mean) - missed * mean
    v = seen * (1 - mean) ** 2 + missed * mean**2
    status = declared.status("window", np.broadcast_to(n, s.shape), s, v).reshape(len(hits), -1)
    first = {value: _first(status == value) for value in (1, -1)}
    return first[1] < first[-1]


def _first(hits: np.ndarray) -> np.ndarray:
    """Index of the first True of each row, its length where there is none."""
    return np.where(hits.any(axis=1), hits.argmax(axis=1), hits.shape[1])
