"""Statistics of two servers beyond greedy texts: their log-probabilities, and sampled texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.stats import server_logprobs, server_samples

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = ("sun", " rises", ", ", "moon", "日本", " 4", "!")


def calibration(gaps: list[float]) -> pd.DataFrame:
    rows = [("p", i, 7, -1.0 + gap, -1.0) for i, gap in enumerate(gaps)]
    return pd.DataFrame(rows, columns=list(server_logprobs.COLUMNS))


def test_noise_is_the_root_mean_square_and_unknown_without_rows() -> None:
    table = calibration([0.3, -0.4, 0.0])
    assert server_logprobs.noise(table) == pytest.approx((0.25 / 3) ** 0.5)
    assert server_logprobs.largest(table) == pytest.approx(0.4)
    assert server_logprobs.noise(calibration([])) is None
    assert server_logprobs.largest(calibration([])) is None


@given(st.floats(1e-9, 50.0))
def test_a_noise_is_rounded_up_and_by_less_than_a_factor_of_two_and_a_half(sigma: float) -> None:
    found = server_logprobs.graded(sigma)
    assert found >= max(sigma, server_logprobs.LEAST_NOISE) * (1 - 1e-9)
    assert found <= 2.5 * max(sigma, server_logprobs.LEAST_NOISE)
    assert server_logprobs.graded(found) == found
    assert f"{found:.0e}"[0] in "125"


def samples(text: Callable[[str, np.random.Generator], str], prompts: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = [
        (arm, f"p{p}", i, text(arm, rng), "length", 8)
        for p in range(prompts)
        for arm in ("baseline", "candidate")
        for i in range(4)
    ]
    columns = ["arm", "prompt", "replicate", "text", "reason", "tokens"]
    return pd.DataFrame(rows, columns=columns)


def drawn(rng: np.random.Generator, words: tuple[str, ...] = WORDS) -> str:
    return "".join(words[i] for i in rng.integers(len(words), size=12))


def p(table: pd.DataFrame, test: str = "mmd") -> float | None:
    return server_samples.p_value(table, test=test, pieces=8, seed=1)


def test_texts_of_one_distribution_agree_and_of_another_do_not() -> None:
    same = samples(lambda _, rng: drawn(rng))
    assert p(same) > 0.01  # type: ignore[operator]
    other = samples(lambda arm, rng: drawn(rng, WORDS[3:] if arm == "candidate" else WORDS[:3]))
    assert p(other) < 0.0005  # type: ignore[operator]
    assert p(other) == p(other), "the same table gave another p-value"


def test_texts_that_repeat_each_other_are_seen_by_the_other_test() -> None:
    fixed = samples(lambda arm, rng: "one and the same" if arm == "candidate" else drawn(rng))
    assert p(fixed, "repeats") < 0.0005  # type: ignore[operator]
    behind = samples(lambda arm, rng: "one and the same" if arm == "baseline" else drawn(rng))
    assert p(behind, "repeats") > 0.5  # type: ignore[operator]


def test_an_answer_that_broke_off_or_too_few_say_nothing() -> None:
    table = samples(lambda _, rng: drawn(rng))
    table.loc[5, "reason"] = "timeout"
    assert p(table) is None
    assert p(samples(lambda _, rng: drawn(rng), prompts=1)) is None
    assert p(table.head(0)) is None
    assert server_samples.compared(table) == len(table) - 1
    table.loc[4, "tokens"] = None
    assert server_samples.tokens(table) is None
