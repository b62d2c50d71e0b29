from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gatekeeper.core.stats.two_sample import ENDED, mmd, padded, repeats
from gatekeeper.errors import InputError

B = 999


def texts(
    rng: np.random.Generator, n: int, *, weights: list[float], prompts: int = 4, length: int = 6
) -> dict[str, np.ndarray]:
    law = np.array(weights) / sum(weights)
    return {
        f"prompt {i}": rng.choice(len(law), (n, length), p=np.roll(law, i)) for i in range(prompts)
    }


def test_mmd_is_the_distance_of_the_distributions_at_every_position() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 3, (5, 4)), rng.integers(0, 3, (7, 4))
    found = mmd({"x": a}, {"x": b}, permutations=50, rng=rng)

    def mean(x: np.ndarray, y: np.ndarray, *, same: bool) -> float:
        pairs = [
            np.mean(one == two)
            for i, one in enumerate(x)
            for j, two in enumerate(y)
            if not (same and i == j)
        ]
        return float(np.mean(pairs))

    expected = mean(a, a, same=True) + mean(b, b, same=True) - 2 * mean(a, b, same=False)
    assert found.statistic == pytest.approx(expected, abs=1e-6)
    assert (found.prompts, found.sequences, found.tokens) == (1, 12, 48)


def test_p_values_of_equal_arms_are_uniform_and_never_zero() -> None:
    rng = np.random.default_rng(1)
    found = [
        mmd(
            texts(rng, 5, weights=[3, 1, 1]),
            texts(rng, 8, weights=[3, 1, 1]),
            permutations=99,
            rng=rng,
        ).p_value
        for _ in range(200)
    ]
    assert min(found) >= 1 / 100
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_a_moved_distribution_is_found_and_shuffled_prompts_are_not() -> None:
    rng = np.random.default_rng(2)
    same = texts(rng, 30, weights=[5, 1, 1])
    other = texts(rng, 30, weights=[5, 3, 1])
    assert mmd(same, other, permutations=B, rng=rng).p_value == 1 / (1 + B)
    # Prompts differ by far more than the arms would: labels are permuted within each alone.
    again = texts(np.random.default_rng(3), 30, weights=[5, 1, 1])
    assert mmd(same, again, permutations=B, rng=rng).p_value > 0.01


def test_identical_texts_everywhere_say_nothing() -> None:
    one = {"x": np.zeros((20, 5), dtype=np.int64)}
    for test in (mmd, repeats):
        found = test(one, one, permutations=99, rng=np.random.default_rng(0))
        assert (found.p_value, found.statistic) == (1.0, 0.0)


def test_repeats_finds_seeds_that_are_ignored_with_few_texts() -> None:
    rng = np.random.default_rng(4)
    baseline = texts(rng, 2, weights=[1, 1, 1], prompts=8)
    own = texts(rng, 1, weights=[1, 1, 1], prompts=8)
    ignored = {name: np.repeat(text, 2, axis=0) for name, text in own.items()}
    found = repeats(ignored, baseline, permutations=B, rng=rng)
    assert found.p_value <= 2 / (1 + B)
    assert found.statistic > 0.5
    # One-sided: a baseline that repeats itself is no fault of the candidate.
    assert repeats(baseline, ignored, permutations=B, rng=rng).p_value > 0.5


def test_repeats_allows_what_the_baseline_does_too() -> None:
    rng = np.random.default_rng(5)
    peaked = [200.0, 1.0, 1.0]  # nearly greedy: everyone repeats
    found = [
        repeats(
            texts(rng, 3, weights=peaked), texts(rng, 3, weights=peaked), permutations=199, rng=rng
        ).p_value
        for _ in range(60)
    ]
    assert sum(p <= 0.05 for p in found) <= 8


def test_padded_texts_differ_where_one_has_ended() -> None:
    short, long = padded([[1, 2], [1, 2]], 4), padded([[1, 2, 1, 2, 9]] * 2, 4)
    assert short.tolist() == [[1, 2, ENDED, ENDED]] * 2
    assert long.tolist() == [[1, 2, 1, 2]] * 2
    pool = {str(i): (short, long) for i in range(8)}
    found = mmd(
        {k: v[0] for k, v in pool.items()},
        {k: v[1] for k, v in pool.items()},
        permutations=B,
        rng=np.random.default_rng(0),
    )
    assert found.statistic == pytest.approx(1.0)
    assert found.p_value < 0.01
    assert found.tokens == 8 * (4 + 8)


@pytest.mark.parametrize(
    ("candidate", "baseline", "permutations", "field"),
    [
        ({}, {}, 99, "prompts"),
        ({"x": np.zeros((2, 3))}, {"y": np.zeros((2, 3))}, 99, "prompts"),
        ({"x": np.zeros((1, 3))}, {"x": np.zeros((9, 3))}, 99, "sequences[x]"),
        ({"x": np.zeros((9, 0))}, {"x": np.zeros((9, 0))}, 99, "sequences[x]"),
        ({"x": np.zeros((9, 3))}, {"x": np.zeros((9, 4))}, 99, "sequences[x]"),
        ({"x": np.zeros((9, 3))}, {"x": np.zeros((9, 3))}, 0, "permutations"),
        # 6 labellings of 2 and 2 cannot give p = 1/100
        ({"x": np.zeros((2, 3))}, {"x": np.zeros((2, 3))}, 99, "sequences"),
    ],
)
def test_too_little_is_refused(
    candidate: dict[str, np.ndarray], baseline: dict[str, np.ndarray], permutations: int, field: str
) -> None:
    for test in (mmd, repeats):
        with pytest.raises(InputError) as caught:
            test(candidate, baseline, permutations=permutations, rng=np.random.default_rng(0))
        assert caught.value.field == field
