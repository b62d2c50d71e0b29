from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gatekeeper.core.equations import EQUATIONS
from gatekeeper.core.stats import outcome_pairs as pairs
from gatekeeper.core.stats.noninferiority import (
    attainable_power,
    minimal_pairs,
    non_inferiority,
    pairs_needed,
    tango_interval,
)
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError


def table(baseline: Any, candidate: Any, *, cluster: Any = None, **changes: Any) -> pd.DataFrame:
    n = len(baseline)
    return pd.DataFrame(
        {
            "task": [f"t{i}" for i in range(n)],
            "sample": 0,
            "kind": "copy",
            "cluster": range(n) if cluster is None else cluster,
            "baseline_success": baseline,
            "candidate_success": candidate,
            "baseline_cost": np.linspace(1, 2, n),
            "candidate_cost": np.linspace(1, 2, n)[::-1],
        }
        | changes
    )


def counted(b: int, c: int, n: int, **changes: Any) -> pd.DataFrame:
    return table(
        [1] * b + [0] * c + [1] * (n - b - c), [0] * b + [1] * c + [1] * (n - b - c), **changes
    )


@given(st.integers(0, 30), st.integers(0, 30), st.integers(61, 400))
def test_one_pair_per_cluster_is_plain_tango(b: int, c: int, n: int) -> None:
    found = pairs.success(counted(b, c, n), margin=0.05, alpha=0.05)
    assert found == non_inferiority(b, c, n, margin=0.05, alpha=0.05)
    assert pairs.effective(counted(b, c, n), alpha=0.05).design_effect == 1


def test_tangos_check_value_through_the_equations() -> None:
    given = counted(25, 28, 618)
    ends = [pairs.interval(given, alpha=0.05, end=end) for end in ("low", "high")]
    assert [round(end, 4) for end in ends if end is not None] == [-0.0148, 0.0247]
    assert pairs.difference(given) == pytest.approx(3 / 618)


def test_copies_of_a_cluster_add_nothing() -> None:
    """Each pair ten times over, with one cluster for its copies: what it was, once."""
    once = counted(40, 20, 300)
    copies = once.loc[once.index.repeat(10)].reset_index(drop=True)
    copies["sample"] = copies.groupby("task").cumcount()
    alone = pairs.success(once, margin=0.02, alpha=0.05)
    ten = pairs.success(copies, margin=0.02, alpha=0.05)
    worth = pairs.effective(copies, alpha=0.05)
    assert worth.design_effect == pytest.approx(10, rel=0.01)
    assert ten.interval == pytest.approx(alone.interval, abs=1e-3)
    assert ten.difference == pytest.approx(alone.difference)
    cost = [pairs.cost_ratio(t, alpha=0.05) for t in (once, copies)]
    assert cost[1].ratio == pytest.approx(cost[0].ratio)
    assert (cost[1].low, cost[1].high) == pytest.approx((cost[0].low, cost[0].high))


def test_design_effect_is_the_ratio_of_variances() -> None:
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(60), 5)
    shift = rng.normal(0, 0.4, 60)[cluster]
    given = table(
        (rng.random(300) < 0.5).astype(int),
        (rng.random(300) < np.clip(0.5 + shift, 0, 1)).astype(int),
        cluster=cluster,
    )
    change = given["candidate_success"] - given["baseline_success"]
    means = change.groupby(given["cluster"]).mean()
    expected = means.var(ddof=1) / 60 / (change.var(ddof=1) / 300)
    worth = pairs.effective(given, alpha=0.05)
    assert worth.design_effect == pytest.approx(expected)
    assert expected > 1.5
    few = (stats.norm.isf(0.05) / stats.t.isf(0.05, 59)) ** 2
    assert worth.pairs == pytest.approx(300 / expected * few)


def test_the_design_effect_never_flatters() -> None:
    """Pairs that differ in turn within a cluster vary less than independent ones: still 1."""
    given = counted(50, 50, 200, cluster=[i % 50 for i in range(200)])
    worth = pairs.effective(given, alpha=0.05)
    assert worth.design_effect == 1
    assert worth.pairs is not None
    assert worth.pairs < 200


def test_where_no_pair_differs_a_cluster_counts_as_one_pair() -> None:
    given = counted(0, 0, 400, cluster=[i // 20 for i in range(400)])
    worth = pairs.effective(given, alpha=0.05)
    assert worth.design_effect == 20
    assert pairs.success(given, margin=0.02, alpha=0.05).outcome is Outcome.INCONCLUSIVE
    alone = counted(0, 0, 400)
    assert pairs.success(alone, margin=0.02, alpha=0.05).outcome is Outcome.PASS


def test_one_cluster_is_no_evidence() -> None:
    given = counted(0, 30, 400, cluster=["same"] * 400)
    found = pairs.success(given, margin=0.02, alpha=0.05)
    assert (found.outcome, found.interval) == (Outcome.INCONCLUSIVE, None)
    assert pairs.cost_ratio(given, alpha=0.05).high is None
    assert pairs.needed(given, margin=0.02, alpha=0.05) is None


@pytest.mark.parametrize("n", [0, 1])
def test_no_or_one_pair_is_no_evidence(n: int) -> None:
    found = pairs.success(counted(0, 0, n), margin=0.9, alpha=0.4)
    assert (found.outcome, found.interval) == (Outcome.INCONCLUSIVE, None)


def test_cost_per_success_by_hand() -> None:
    given = table(
        [1, 1, 0, 1], [1, 0, 1, 1], baseline_cost=[2.0, 2, 2, 3], candidate_cost=[1.0, 1, 3, 1]
    )
    assert pairs.cost_per_success(given, arm="baseline") == pytest.approx(3)
    assert pairs.cost_per_success(given, arm="candidate") == pytest.approx(2)
    found = pairs.cost_ratio(given, alpha=0.05)
    z = [(1 / 1.5 - 1 / 0.75) - (2 / 2.25 - 1 / 0.75)]
    z += [(1 / 1.5 - 0) - (2 / 2.25 - 1 / 0.75), (3 / 1.5 - 1 / 0.75) - (2 / 2.25 - 0)]
    z += [(1 / 1.5 - 1 / 0.75) - (3 / 2.25 - 1 / 0.75)]
    half = stats.t.isf(0.05, 3) * np.std(z, ddof=1) / 2
    assert found.ratio == pytest.approx(2 / 3)
    assert found.low == pytest.approx(2 / 3 * math.exp(-half))
    assert found.high == pytest.approx(2 / 3 * math.exp(half))


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_an_arm_without_success_has_no_cost_per_success(arm: str) -> None:
    given = counted(10, 10, 40, **{f"{arm}_success": 0})
    found = pairs.cost_ratio(given, alpha=0.05)
    assert (found.ratio, found.low, found.high) == (None, None, None)
    assert found.problem is not None
    assert arm in found.problem
    assert pairs.cost_per_success(given, arm=arm) is None
    free = counted(10, 10, 40, **{f"{arm}_cost": 0.0})
    assert pairs.cost_ratio(free, alpha=0.05).ratio is None


def test_needed_follows_the_observed_discordance_and_the_design_effect() -> None:
    assert pairs.needed(counted(0, 0, 30), margin=0.02, alpha=0.05) == 133
    plain = pairs_needed(margin=0.02, discordance=0.1, alpha=0.05)
    assert pairs.needed(counted(20, 20, 400), margin=0.02, alpha=0.05) == plain
    once = counted(20, 20, 400)
    twice = pd.concat([once, once.assign(sample=1)], ignore_index=True)
    assert pairs.needed(twice, margin=0.02, alpha=0.05) == pytest.approx(2 * plain, rel=0.02)
    assert pairs.needed(counted(20, 20, 40), margin=0.02, alpha=0.05) is not None


def spoiled(column: str, value: Any) -> pd.DataFrame:
    given = counted(1, 1, 50).astype({f"{a}_success": float for a in pairs.ARMS})
    given[column] = given[column].astype(object)
    given.loc[7, column] = value
    return given


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("task", "t3"),
        ("task", None),
        ("cluster", None),
        ("baseline_success", 2),
        ("candidate_success", 0.5),
        ("candidate_success", np.nan),
        ("baseline_cost", -1.0),
        ("candidate_cost", np.inf),
        ("candidate_cost", np.nan),
    ],
)
def test_a_spoiled_table_has_no_figures(column: str, value: Any) -> None:
    given = spoiled(column, value)
    for name, known in EQUATIONS.items():
        if name.startswith("outcome."):
            arguments = {
                "outcome.count": {"of": "b"},
                "outcome.success_rate": {"arm": "baseline"},
                "outcome.cost_per_success": {"arm": "baseline"},
                "outcome.interval": {"alpha": 0.05, "end": "low"},
                "outcome.pairs_needed": {"alpha": 0.05, "margin": 0.02},
                "outcome.difference": {},
                "outcome.pairs_of_kind": {"kind": "copy"},
            }.get(name, {"alpha": 0.05})
            with pytest.raises(InputError) as refused:
                known.function(given, **arguments)
            assert refused.value.field == f"pairs.{column}"
    with pytest.raises(InputError, match=column):
        pairs.check_pairs(given.drop(columns=column))


def test_power_is_the_sample_size_read_backwards() -> None:
    for discordance in (0.05, 0.2):
        n = pairs_needed(margin=0.02, discordance=discordance, power=0.9)
        power = attainable_power(n, margin=0.02, discordance=discordance)
        assert power == pytest.approx(0.9, abs=1e-3)
    least = minimal_pairs(0.02, 0.05)
    assert attainable_power(least - 1, margin=0.02, discordance=0.001) == 0
    assert attainable_power(least, margin=0.02, discordance=0.001) > 0.4
    with pytest.raises(InputError):
        attainable_power(100, margin=0.02, discordance=0)


def test_fractions_of_counts_give_the_interval_in_between() -> None:
    less, between, more = (tango_interval(b, 5, 100) for b in (9, 9.5, 10))
    assert more[0] < between[0] < less[0]
