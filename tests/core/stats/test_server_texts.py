"""Departures of greedy texts, on small tables written by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from gatekeeper.core.stats import server_texts
from gatekeeper.core.stats.server_texts import (
    BASELINE,
    CANDIDATE,
    FIRST,
    NO_BASELINE,
    REPEAT,
    TIE,
    departures,
    judge,
    threshold,
)
from gatekeeper.core.verdicts import Outcome

TOKENS = ["the", " red", " sun", " is", " up"]


def row(
    arm: str,
    prompt: str,
    tokens: list[str],
    *,
    gap: float = 3.0,
    scored: bool = True,
    reason: str = "length",
    second: str = " X",
    pieces: list[str] | None = None,
) -> dict[str, Any]:
    """An answer; at each token ``second`` is ``gap`` nats less likely, a third one far less."""
    known = tokens if scored else []
    return {
        "arm": arm,
        "prompt": prompt,
        "text": "".join(tokens),
        "pieces": tokens if pieces is None else pieces,
        "reason": reason,
        "tokens": len(tokens),
        "scored": known,
        "top_tokens": [[token, second, " Y"] for token in known],
        "top_logprobs": [[-0.1, -0.1 - gap, -0.1 - gap - 4.0] for _ in known],
    }


def table(
    candidate: Any, *, n: int = 10, repeat: Any = None, gap: float = 3.0, scored: bool = True
) -> pd.DataFrame:
    """``candidate(i)`` and ``repeat(i)`` are the texts of the prompts beside the baseline's."""
    rows = []
    for i in range(n):
        prompt = f"p{i:02d}"
        again = TOKENS if repeat is None else repeat(i)
        rows += [
            row(BASELINE, prompt, TOKENS, gap=gap, scored=scored),
            row(REPEAT, prompt, again, gap=gap, scored=scored),
            row(CANDIDATE, prompt, candidate(i), scored=False),
        ]
    return pd.DataFrame(rows)


def test_equal_texts_have_no_fault() -> None:
    verdict = judge(table(lambda i: TOKENS), alpha=0.001)
    assert (verdict.outcome, verdict.first) == (Outcome.PASS, None)


def test_a_departure_is_measured_under_the_baselines_own_log_probabilities() -> None:
    texts = table(lambda i: ["the", " X", "el"] if i == 3 else TOKENS, gap=2.0)
    (one,) = departures(texts, CANDIDATE)
    assert (one.prompt, one.position, one.expected, one.found) == ("p03", 1, " red", " X")
    assert one.deficit == pytest.approx(2.0)
    assert not one.at_least
    verdict = judge(texts, alpha=0.001)
    assert verdict.outcome is Outcome.FAIL
    assert "p03 at token 1" in verdict.detail


def test_a_token_that_is_not_listed_is_at_least_as_unlikely_as_the_last_listed() -> None:
    texts = table(lambda i: ["the", " blue"] if i == 0 else TOKENS, gap=0.2)
    (one,) = departures(texts, CANDIDATE)
    assert one.at_least
    assert one.deficit == pytest.approx(4.2)


def test_near_ties_up_to_the_threshold_are_no_faults() -> None:
    for gap, outcome in ((TIE - 0.01, Outcome.PASS), (TIE + 0.01, Outcome.FAIL)):
        texts = table(lambda i: ["the", " X"] if i == 0 else TOKENS, gap=gap)
        assert judge(texts, alpha=0.001).outcome is outcome


def test_the_threshold_follows_the_baselines_own_noise_up_to_a_limit() -> None:
    noisy = table(
        lambda i: ["the", " X"] if i == 0 else TOKENS,
        repeat=lambda i: ["the", " X"] if i == 1 else TOKENS,
        gap=0.6,
    )
    assert threshold(noisy) == pytest.approx(0.9)
    assert judge(noisy, alpha=0.001).outcome is Outcome.PASS
    wild = table(lambda i: TOKENS, repeat=lambda i: ["the", " X"] if i == 1 else TOKENS, gap=2.0)
    assert judge(wild, alpha=0.001).outcome is Outcome.ERROR


def test_first_tokens_that_move_widen_the_threshold_within_its_limit() -> None:
    for moved, expected in ((0.1, TIE), (0.3, 0.6), (5.0, NO_BASELINE)):
        texts = table(lambda i: TOKENS)
        first = row(FIRST, "p00", TOKENS[:1])
        first["top_logprobs"] = [[-0.1 - moved, -3.1, -7.1]]
        assert threshold(pd.concat([texts, pd.DataFrame([first])])) == pytest.approx(expected)
    assert server_texts.first_token_difference(texts, arm=FIRST) is None


def test_many_near_ties_are_more_than_numerics_explain() -> None:
    texts = table(lambda i: ["the", " X"] if i < 9 else TOKENS, gap=0.3)
    verdict = judge(texts, alpha=0.001)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "more than numerics explain" in verdict.detail


def test_a_text_that_ends_early_emitted_an_unlisted_end_token() -> None:
    for gap, outcome in ((3.0, Outcome.FAIL), (0.3, Outcome.INCONCLUSIVE)):
        texts = table(lambda i: TOKENS, gap=gap)
        early = (texts["arm"] == CANDIDATE) & (texts["prompt"] == "p00")
        texts.loc[early, ["text", "reason"]] = ["the red", "stop"]
        (one,) = departures(texts, CANDIDATE)
        assert (one.position, one.at_least) == (2, True)
        assert judge(texts, alpha=0.001).outcome is outcome


def test_a_text_that_goes_on_after_the_baselines_end_is_undecided() -> None:
    texts = table(lambda i: [*TOKENS, " and"] if i == 0 else TOKENS)
    (one,) = departures(texts, CANDIDATE)
    assert one.deficit is None
    assert judge(texts, alpha=0.001).outcome is Outcome.INCONCLUSIVE


def test_other_tokens_of_the_same_characters_are_undecided() -> None:
    """The candidate's pieces cut the shared text elsewhere: it parted unseen before."""
    texts = table(lambda i: ["the r", "ed", " X"] if i == 0 else TOKENS, gap=3.0)
    (one,) = departures(texts, CANDIDATE)
    assert (one.position, one.deficit) == (2, None)
    assert judge(texts, alpha=0.001).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("differing", "noise", "outcome"),
    [
        (0, 0, Outcome.PASS),
        (4, 0, Outcome.INCONCLUSIVE),
        (20, 0, Outcome.FAIL),
        (20, 1, Outcome.INCONCLUSIVE),
    ],
)
def test_without_log_probabilities_only_most_texts_departing_early_fails(
    differing: int, noise: int, outcome: Outcome
) -> None:
    texts = table(
        lambda i: ["the", " X"] if i < differing else TOKENS,
        n=20,
        repeat=lambda i: ["the", " X"] if i < noise else TOKENS,
        scored=False,
    )
    assert judge(texts, alpha=0.001).outcome is outcome


def test_late_departures_without_log_probabilities_do_not_count_as_early() -> None:
    def longer(last: str) -> list[str]:
        return [*["word "] * 30, last]

    rows = [
        row(arm, f"p{i}", longer("a" if arm == CANDIDATE else "b"), scored=False)
        for i in range(20)
        for arm in (BASELINE, REPEAT, CANDIDATE)
    ]
    assert judge(pd.DataFrame(rows), alpha=0.001).outcome is Outcome.INCONCLUSIVE


def test_few_prompts_or_answers_that_broke_off_prove_nothing() -> None:
    assert judge(table(lambda i: TOKENS, n=7), alpha=0.001).outcome is Outcome.INCONCLUSIVE
    texts = table(lambda i: TOKENS, n=10)
    texts.loc[(texts["arm"] == CANDIDATE) & (texts["prompt"] < "p03"), "reason"] = "dropped"
    assert server_texts.compared(texts, arm=CANDIDATE) == 7
    assert judge(texts, alpha=0.001).outcome is Outcome.INCONCLUSIVE
    texts = table(lambda i: TOKENS, n=10)
    texts.loc[texts["arm"] == REPEAT, "reason"] = "timeout"
    assert judge(texts, alpha=0.001).outcome is Outcome.INCONCLUSIVE


def test_tokens_are_unknown_where_one_usage_is() -> None:
    texts = table(lambda i: TOKENS)
    assert server_texts.tokens(texts, arm=CANDIDATE) == 50
    texts.loc[texts["arm"] == CANDIDATE, "tokens"] = pd.NA
    assert server_texts.tokens(texts, arm=CANDIDATE) is None
