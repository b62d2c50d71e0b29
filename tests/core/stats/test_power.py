from __future__ import annotations

import math

import pytest

from gatekeeper.core.stats.power import REFERENCE, attainable, detectable_speedup, power


def test_the_smallest_provable_speedup_is_that_of_the_t_approximation() -> None:
    found = detectable_speedup(5, spread=0.1, confidence=0.95, target_power=0.9)
    # t quantiles with 4 degrees of freedom: 2.1318 at .95, 1.5332 at .9
    assert found == pytest.approx(math.exp((2.1318 + 1.5332) * 0.1 / math.sqrt(5)), rel=1e-4)
    more = detectable_speedup(20, spread=0.1, confidence=0.95, target_power=0.9)
    assert 1 < more < found


def test_power_grows_with_tokens_and_is_a_half_at_the_median() -> None:
    for median in REFERENCE.values():
        assert power(median, median, alpha=1e-3) == pytest.approx(0.5)
        assert power(median, median // 2, alpha=1e-3) < 0.5 < power(median, 2 * median, alpha=1e-3)
    assert power(500, 0, alpha=1e-3) == 0.0
    assert attainable(1000, alpha=1e-3).keys() == REFERENCE.keys()
