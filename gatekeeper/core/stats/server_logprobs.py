"""Log-probabilities of a server beside those of our own forward: are these the declared weights?

Table ``calibration``, one row for each greedy token of the server that decodes alone: ``prompt``,
``position``, ``token``, ``served`` (the server's log-probability of it) and ``own`` (that of the
declared weights in our forward, teacher-forced over the same text), both in nats, of the raw logits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.core.claims import equation

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "LEAST_NOISE", "SAME_WEIGHTS", "graded", "largest", "noise"]

COLUMNS = {
    "prompt": "str",
    "position": "int64",
    "token": "int64",
    "served": "float64",
    "own": "float64",
}

SAME_WEIGHTS = 0.1
"""Nats (root mean square) up to which two forwards count as those of one model. Exact decoding with
logit noise of that size was seen to stay silent in the strict bank; quantised weights lie above."""

LEAST_NOISE = 2e-5
"""Per-logit sd between float32 forwards of other batch shapes: none is assumed to be smaller."""

_STEPS = (1.0, 2.0, 5.0, 10.0)


@equation("servers.logprob_noise", table=True)
def noise(table: pd.DataFrame) -> float | None:
    """Root mean square of served − own, nats; None without rows.

    The server's log-probability and ours have noise of their own, and both its normaliser: this
    is the sd of their difference, which is what a deficit under our forward varies by.
    """
    if table.empty:
        return None
    gaps = table["served"].to_numpy(dtype=np.float64) - table["own"].to_numpy(dtype=np.float64)
    return float(np.sqrt(np.mean(gaps**2)))


@equation("servers.logprob_largest", table=True)
def largest(table: pd.DataFrame) -> float | None:
    """Largest |served − own|, nats; None without rows."""
    if table.empty:
        return None
    return float((table["served"] - table["own"]).abs().max())


def graded(sigma: float) -> float:
    """Round a noise up to 1, 2 or 5 times a power of ten, ``LEAST_NOISE`` at least.

    Two runs of one test measure nearly the same noise; on this scale mostly the very same, so that
    the second may go on where the first stopped.
    """
    at_least = max(sigma, LEAST_NOISE)
    power = 10.0 ** math.floor(math.log10(at_least))
    found = next(step for step in _STEPS if step * power >= at_least * (1 - 1e-12))
    return float(f"{found * power:.0e}")
