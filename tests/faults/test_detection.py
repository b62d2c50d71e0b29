"""Planted faults: the detector sees only the evidence format."""

from functools import lru_cache

import numpy as np
import pytest
from faults.synthetic import MarkovLM, arrays, decode

from gatekeeper.core.stats.eprocess import Bank, bonus_by_index, log_e, running_log_e
from gatekeeper.gates.equivalence_check import check

ALPHA = 1e-3
TOKENS = 32  # a request

# Median tokens to detection with p and q, of the statistics design.
REFERENCE = {
    "residual_not_subtracted": 425,
    "bonus_from_q": 852,
    "accept_above_tenth": 407,
    "argmax_draft": 97,
    "correction_from_q": 130,
    "q_wrong_temperature": 752,
    "absolute_residual": 150,
    "bonus_stale_context": 12,
    "greedy_match_accept": 255,
    "same_seed_per_request": 7,
}


@lru_cache
def model() -> MarkovLM:
    # 500 tokens, entropy 1.7 nats, acceptance .76: the conditions of the reference points.
    return MarkovLM.make(np.random.default_rng(1), spread=4.5, noise=0.9)


def test_the_model_has_the_conditions_of_the_reference_points() -> None:
    assert model().vocabulary == 500
    assert 0.6 <= model().acceptance <= 0.8
    assert 1.4 <= model().entropy <= 2.2


def tokens_to_detection(
    fault: str | None, seed: int, *, limit: int, gamma: int = 4, strength: float = 0.7
) -> float:
    lm = model()
    evidence = decode(
        lm,
        np.random.default_rng(1000 + seed),
        requests=max(2, -(-limit // TOKENS)),
        tokens=TOKENS,
        gamma=gamma,
        fault=fault,
        strength=strength,
    )
    if fault == "same_seed_per_request":
        # Replicates side by side, as the gate runs them; the first one cannot be a duplicate.
        evidence = sorted(evidence, key=lambda e: (e.prompt, e.replicate))
    bank = Bank(lm.vocabulary, seed=seed)
    total, spent = None, 0
    for request in evidence:
        log_f = bank.add(request, bonus_by_index(request, None, kind_is_past=False)).log_f
        crossed = np.flatnonzero(running_log_e(log_f, total) >= np.log(1 / ALPHA))
        if len(crossed):
            return spent + int(crossed[0]) + 1
        total = log_f.sum(axis=0) if total is None else total + log_f.sum(axis=0)
        spent += request.rows
    return np.inf


@pytest.mark.parametrize("fault", REFERENCE)
def test_the_median_of_20_seeds_is_at_most_twice_the_reference(fault: str | None) -> None:
    limit = 2 * REFERENCE[fault]
    if fault == "same_seed_per_request":
        # Only tokens of second replicates can tell; the reference counts those.
        found = [tokens_to_detection(fault, s, limit=128) - TOKENS for s in range(20)]
    else:
        found = [tokens_to_detection(fault, s, limit=limit + TOKENS) for s in range(20)]
    assert np.median(found) <= limit, sorted(found)


@pytest.mark.parametrize("strength", [0.5, 1.3])
def test_other_wrong_temperatures_are_found_too(strength: float) -> None:
    found = [
        tokens_to_detection("q_wrong_temperature", s, limit=1504, strength=strength)
        for s in range(10)
    ]
    assert np.median(found) <= 1504


def test_bonus_faults_show_sooner_at_gamma_1() -> None:
    medians = {
        gamma: np.median(
            [tokens_to_detection("bonus_from_q", s, limit=1700, gamma=gamma) for s in range(10)]
        )
        for gamma in (1, 4)
    }
    assert medians[1] < medians[4]


def test_exact_and_faulty_are_told_apart_under_hidden_labels() -> None:
    rng = np.random.default_rng(77)
    labels = rng.permutation(
        [None] * 6 + ["residual_not_subtracted", "bonus_from_q", "correction_from_q",
                      "argmax_draft", "accept_above_tenth", "q_wrong_temperature"]
    )  # fmt: skip
    files = [
        arrays(decode(model(), np.random.default_rng(500 + i), requests=64, tokens=32, fault=f))
        for i, f in enumerate(labels)
    ]
    answers = [check(a, window=0.05, bonus=0.1) for a in files]
    said_faulty = [a["outcome"] == "FAIL" for a in answers]
    assert said_faulty == [f is not None for f in labels]


def test_without_q_or_place_the_check_still_works_and_still_finds_coarse_faults() -> None:
    for fault, expected in ((None, False), ("argmax_draft", True), ("accept_above_tenth", True)):
        evidence = arrays(
            decode(model(), np.random.default_rng(9), requests=60, tokens=32, fault=fault)
        )
        grey = {k: v for k, v in evidence.items() if k not in {"q", "k", "kind", "draft", "round"}}
        answer = check(grey, window=0.08)
        assert (answer["outcome"] == "FAIL") is expected
        assert {row["stratum"] for row in answer["tolerance"]} == {"all"}
        assert not answer["trace"]["available"]


def test_log_e_of_an_exact_run_stays_far_below_the_limit() -> None:
    evidence = decode(model(), np.random.default_rng(3), requests=60, tokens=50)
    bank = Bank(500, seed=0)
    total = sum(
        bank.add(e, bonus_by_index(e, None, kind_is_past=False)).log_f.sum(axis=0) for e in evidence
    )
    assert log_e(total) < np.log(20)
