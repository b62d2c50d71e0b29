from typing import Any

import numpy as np
import pandas as pd
import pytest

from gatekeeper.core.stats import greedy
from gatekeeper.core.verdicts import Outcome


def rows(arm: str, prompt: str, tokens: list[int], deficits: Any = None) -> pd.DataFrame:
    n = len(tokens)
    return pd.DataFrame(
        {
            "arm": [arm] * n,
            "prompt": [prompt] * n,
            "position": range(n),
            "token": tokens,
            "deficit": np.zeros(n) if deficits is None else deficits,
        }
    ).astype(greedy.COLUMNS)


def judge(
    *tables: pd.DataFrame, rule: str = "deficit", sigma: float = 0.001, prompts: int = 1
) -> greedy.GreedyVerdict:
    table = pd.concat(tables, ignore_index=True)
    return greedy.judge(table, rule=rule, sigma=sigma, tau_sigma=10, prompts=prompts)


def test_identical_arms_pass() -> None:
    verdict = judge(rows("ordinary", "a", [1, 2, 3]), rows("speculative", "a", [1, 2, 3]))
    assert verdict.outcome is Outcome.PASS
    assert (verdict.mismatches, verdict.ties, verdict.positions) == (0, 0, 3)


def test_a_tie_within_tau_passes_and_counts() -> None:
    verdict = judge(
        rows("ordinary", "a", [1, 2, 3]), rows("speculative", "a", [1, 2, 4], [0, 0, 0.009])
    )
    assert verdict.outcome is Outcome.PASS
    assert verdict.ties == 1
    assert verdict.tau == pytest.approx(0.01)


def test_a_deficit_above_tau_fails_with_its_place() -> None:
    verdict = judge(
        rows("ordinary", "a", [1, 2, 3]), rows("speculative", "a", [1, 7, 3], [0, 0.011, 0])
    )
    assert verdict.outcome is Outcome.FAIL
    assert verdict.first == ("a", 1, 7, pytest.approx(0.011))


def test_tau_follows_the_baselines_own_ties() -> None:
    base = rows("ordinary", "a", [1, 2, 3], [0, 0.04, 0])
    assert greedy.threshold(base, sigma=0.001, tau_sigma=10, rule="deficit") == pytest.approx(0.06)
    verdict = judge(base, rows("speculative", "a", [1, 2, 3], [0, 0.05, 0]))
    assert verdict.outcome is Outcome.PASS


def test_a_baseline_far_from_the_target_excuses_nothing() -> None:
    verdict = judge(
        rows("ordinary", "a", [1, 2, 3], [0, 5.0, 0]),
        rows("speculative", "a", [1, 9, 3], [0, 6.0, 0]),
    )
    assert verdict.outcome is Outcome.ERROR


def test_the_bitwise_rule_compares_texts_and_allows_no_tie() -> None:
    base = rows("ordinary", "a", [1, 2, 3])
    tie = judge(base, rows("speculative", "a", [1, 2, 4], [0, 0, 1e-7]), rule="bitwise")
    assert tie.outcome is Outcome.FAIL
    assert tie.first[:3] == ("a", 2, 4)
    assert tie.tau == 0
    short = judge(base, rows("speculative", "a", [1, 2]), rule="bitwise")
    assert short.first[:3] == ("a", 2, -1)
    assert judge(base, rows("speculative", "a", [1, 2, 3]), rule="bitwise").outcome is Outcome.PASS


def test_missing_prompts_or_arms_are_inconclusive() -> None:
    assert judge(rows("ordinary", "a", [1])).outcome is Outcome.INCONCLUSIVE
    both = (rows("ordinary", "a", [1]), rows("speculative", "a", [1]))
    assert judge(*both, prompts=2).outcome is Outcome.INCONCLUSIVE
    empty = judge(rows("ordinary", "a", []))
    assert empty.outcome is Outcome.INCONCLUSIVE
    assert empty.tie_rate is None


def test_many_more_ties_than_the_baseline_prevent_a_pass() -> None:
    n = 400
    ties = np.where(np.arange(n) % 8 == 0, 0.005, 0.0)
    verdict = judge(rows("ordinary", "a", [1] * n), rows("speculative", "a", [1] * n, ties))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "more than numerics explain" in verdict.detail


def test_sigma_is_the_sd_of_logit_differences_whatever_the_normaliser() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (50, 300))
    noisy = logits + rng.normal(0, 0.03, logits.shape) + rng.normal(0, 1, (50, 1))

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return (e / e.sum(axis=1, keepdims=True)).astype(np.float32)

    assert greedy.logit_sigma(softmax(logits), softmax(noisy)) == pytest.approx(0.03, rel=0.05)
