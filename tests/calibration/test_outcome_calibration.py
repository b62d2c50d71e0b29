"""The outcome gate's errors over many simulated gates: false passes, false fails, coverage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from gatekeeper.core.stats import outcome_pairs as pairs
from gatekeeper.core.verdicts import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.calibration
ALPHA = 0.05


def gates(
    runs: int,
    *,
    tasks: int,
    samples: int,
    per_cluster: int,
    loss: float,
    uneven: float = 0.0,
    mood: float = 0.0,
    cost_ratio: float = 1.0,
    seed: int = 0,
) -> Iterator[pd.DataFrame]:
    """Simulated tables: tasks of different difficulty, samples independent given the task.

    ``uneven``: sd over tasks of the loss, whose mean is ``loss``; ``mood``: sd of a cost factor
    that all pairs of a cluster share within an arm.
    """
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(tasks), samples)
    cluster = task // per_cluster
    for _ in range(runs):
        base = rng.uniform(0.35, 0.95, tasks)
        loss_of = np.full(tasks, loss)
        if uneven:
            # Two-point, so that probabilities stay inside and the mean is exact in expectation.
            loss_of = loss + uneven * rng.choice([-1.0, 1.0], tasks)
        chance = {"baseline": base[task], "candidate": (base - loss_of)[task]}
        table: dict[str, Any] = {"task": task, "kind": "", "cluster": cluster}
        table["sample"] = np.tile(np.arange(samples), tasks)
        for arm, p in chance.items():
            won = rng.random(len(task)) < p
            shared = rng.lognormal(-(mood**2) / 2, mood, cluster.max() + 1)[cluster]
            level = cost_ratio if arm == "candidate" else 1.0
            noise = rng.lognormal(-0.02, 0.2, len(task))
            table[f"{arm}_success"] = won.astype(int)
            # Failures talk on, so they cost more.
            table[f"{arm}_cost"] = level * shared * noise * np.where(won, 1.0, 1.4)
        yield pd.DataFrame(table)


SHAPES = {
    "one pair per cluster": {"tasks": 250, "samples": 1, "per_cluster": 1},
    "samples of a task": {"tasks": 60, "samples": 6, "per_cluster": 1},
    "the demo's": {"tasks": 32, "samples": 2, "per_cluster": 2},
}


@pytest.mark.parametrize("uneven", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_at_the_margin_hardly_more_than_alpha_pass(shape: str, uneven: float) -> None:
    margin = 0.2
    found = [
        pairs.success(table, margin=margin, alpha=ALPHA).outcome
        for table in gates(800, loss=margin, uneven=uneven, **SHAPES[shape])
    ]
    passed = np.mean([outcome is Outcome.PASS for outcome in found])
    assert passed <= 0.06


def test_without_the_design_effect_uneven_losses_would_pass_too_often() -> None:
    """The correction is needed: pairs taken as independent overstate what they know."""
    shape = {"tasks": 40, "samples": 20, "per_cluster": 1}
    naive, robust = [], []
    for table in gates(400, loss=0.2, uneven=0.15, seed=9, **shape):
        robust.append(pairs.success(table, margin=0.2, alpha=ALPHA).outcome)
        alone = table.assign(cluster=range(len(table)))
        naive.append(pairs.success(alone, margin=0.2, alpha=ALPHA).outcome)
    share = {
        name: np.mean([o is Outcome.PASS for o in found])
        for name, found in (("naive", naive), ("robust", robust))
    }
    assert share["robust"] <= 0.06
    assert share["naive"] > 0.08


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_arms_pass_as_planned_and_never_fail(shape: str) -> None:
    found = [
        pairs.success(table, margin=0.2, alpha=ALPHA).outcome
        for table in gates(250, loss=0.0, **SHAPES[shape])
    ]
    passed = np.mean([o is Outcome.PASS for o in found])
    assert passed > 0.7
    assert Outcome.FAIL not in found


@pytest.mark.parametrize("uneven", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_difference_is_covered(shape: str, uneven: float) -> None:
    covered = []
    for table in gates(400, loss=0.1, uneven=uneven, seed=1, **SHAPES[shape]):
        low, high = (pairs.interval(table, alpha=ALPHA, end=e) for e in ("low", "high"))
        assert low is not None
        assert high is not None
        covered.append(low <= -0.1 <= high)
    assert 0.865 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize("mood", [0.0, 0.15])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cost_ratio_is_covered(shape: str, mood: float) -> None:
    covered = []
    p = 0.65
    truth = 0.8 * (1 + 0.4 * (1 - (p - 0.1))) / (p - 0.1) / ((1 + 0.4 * (1 - p)) / p)
    for table in gates(400, loss=0.1, mood=mood, cost_ratio=0.8, seed=2, **SHAPES[shape]):
        found = pairs.cost_ratio(table, alpha=ALPHA)
        assert found.low is not None
        assert found.high is not None
        covered.append(found.low <= truth <= found.high)
    assert 0.86 <= np.mean(covered) <= 0.95
