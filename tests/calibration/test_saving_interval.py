"""The bootstrap over sessions keeps its promise where sessions are few and their tasks alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pricing_cases import curves, task

from gatekeeper.core.task_savings import saved_seconds

pytestmark = pytest.mark.calibration

TRIALS = 400
CONFIDENCE = 0.95


@pytest.mark.parametrize("sessions", [5, 12, 40])
def test_each_end_is_missed_no_more_often_than_it_says(sessions: int) -> None:
    rng = np.random.default_rng(20240229 + sessions)
    true_decode, true_log = 1.2, math.log(1.6)
    missed = {"low": 0, "high": 0}
    for _ in range(TRIALS):
        rows = []
        for index in range(sessions):
            own = true_decode * rng.gamma(9.0, 1 / 9.0)  # a third of the mean from one to the next
            rows += [
                task(own * rng.uniform(0.9, 1.1), 3.0, name=f"{index}-{k}", session=str(index))
                for k in range(3)
            ]
        pairs = rng.normal(true_log, 0.1, 6)
        found = saved_seconds(
            curves(rows),
            log_ratio=float(pairs.mean()),
            sd=float(pairs.std(ddof=1)),
            pairs=6,
            confidence=CONFIDENCE,
            replicates=600,
            rng=rng,
        )
        assert found is not None
        truth = true_decode * (1 - math.exp(-true_log))
        missed["low"] += found.low > truth
        missed["high"] += found.high < truth
    # four binomial standard deviations beside the promise; few, skewed sessions miss more above
    slack = 4 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / TRIALS)
    assert missed["low"] / TRIALS <= 1 - CONFIDENCE + slack, missed
    assert missed["high"] / TRIALS <= 1 - CONFIDENCE + slack, missed
