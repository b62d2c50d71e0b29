"""Planted faults: the detector sees only the evidence format."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from faults.benign import CONTROLS
from faults.catalogue import FAULTS
from faults.detection import side_by_side, tokens_to_alarm
from faults.markov import END, MarkovLM, with_setting
from faults.synthetic import arrays, decode, decode_with

from gatekeeper.core.stats.eprocess import Bank, bonus_by_index, log_e
from gatekeeper.core.stats.evidence import BONUS
from gatekeeper.gates.equivalence_check import check

TOKENS = 32  # a request
SEEDS = 3
QUICK = [name for name, f in FAULTS.items() if f.reference is not None and f.reference < 1000]
UNREFERENCED = [name for name, f in FAULTS.items() if f.reference is None]


@lru_cache
def model(setting: str = "plain") -> MarkovLM:
    if setting != "plain":
        return with_setting(model(), setting)
    # 500 tokens, entropy 1.7 nats, acceptance .76: the conditions of the reference points.
    return MarkovLM.make(np.random.default_rng(1), spread=4.5, noise=0.9)


def test_the_model_has_the_conditions_of_the_reference_points() -> None:
    assert model().vocabulary == 500
    assert 0.7 <= model().acceptance <= 0.8
    assert 1.6 <= model().entropy <= 2.0


def detection(name: str, seed: int, *, limit: int, gamma: int = 4) -> float:
    fault = FAULTS[name]
    lm = model(fault.setting)
    evidence = decode_with(
        fault.sampler,
        lm,
        np.random.default_rng(1000 + seed),
        requests=max(8, -(-limit // TOKENS)),
        tokens=TOKENS,
        gamma=gamma,
    )
    return tokens_to_alarm(side_by_side(evidence), lm, seed, replicates_only=fault.replicates_only)


# The slower ones, every seed and the 90 % points are in `make verify STAGE=detection`.
@pytest.mark.parametrize("name", QUICK)
def test_the_median_is_at_most_twice_the_reference(name: str) -> None:
    reference = FAULTS[name].reference
    assert reference is not None
    found = [detection(name, seed, limit=int(2 * reference)) for seed in range(SEEDS)]
    assert np.median(found) <= 2 * reference, sorted(found)


@pytest.mark.parametrize("name", UNREFERENCED)
def test_mechanisms_from_public_reports_are_found(name: str) -> None:
    found = detection(name, 0, limit=5000)
    assert found <= 5000


@pytest.mark.parametrize("strength", [0.5, 1.3])
def test_other_wrong_temperatures_are_found_too(strength: float) -> None:
    found = []
    for seed in range(SEEDS):
        evidence = decode(
            model(),
            np.random.default_rng(1000 + seed),
            requests=48,
            tokens=TOKENS,
            strength=strength,
        )
        found.append(tokens_to_alarm(evidence, model(), seed))
    assert np.median(found) <= 1504


def test_bonus_faults_show_sooner_at_gamma_1() -> None:
    medians = {
        gamma: np.median(
            [detection("bonus_from_q", s, limit=1700, gamma=gamma) for s in range(SEEDS)]
        )
        for gamma in (1, 4)
    }
    assert medians[1] < medians[4]


def test_exact_and_faulty_are_told_apart_under_hidden_labels() -> None:
    rng = np.random.default_rng(77)
    planted = [
        "residual_not_subtracted",
        "correction_from_q",
        "argmax_draft",
        "accept_above_tenth",
    ]
    labels = rng.permutation([None] * 4 + planted)
    files = [
        arrays(decode(model(), np.random.default_rng(500 + i), requests=40, tokens=32, fault=f))
        for i, f in enumerate(labels)
    ]
    answers = [check(a, window=0.05, bonus=0.1) for a in files]
    said_faulty = [a["outcome"] == "FAIL" for a in answers]
    assert said_faulty == [f is not None for f in labels]


def test_without_q_or_place_the_check_still_works_and_still_finds_coarse_faults() -> None:
    for fault, expected in ((None, False), ("argmax_draft", True), ("accept_above_tenth", True)):
        evidence = arrays(
            decode(model(), np.random.default_rng(9), requests=40, tokens=32, fault=fault)
        )
        grey = {k: v for k, v in evidence.items() if k not in {"q", "k", "kind", "draft", "round"}}
        answer = check(grey, window=0.08)
        assert (answer["outcome"] == "FAIL") is expected
        assert {row["stratum"] for row in answer["tolerance"]} == {"all"}
        assert not answer["trace"]["available"]


def test_log_e_of_an_exact_run_stays_far_below_the_limit() -> None:
    evidence = decode(model(), np.random.default_rng(3), requests=40, tokens=32)
    bank = Bank(500, seed=0)
    total = sum(
        bank.add(e, bonus_by_index(e, None, kind_is_past=False)).log_f.sum(axis=0) for e in evidence
    )
    assert log_e(total) < np.log(20)


@pytest.mark.parametrize("setting", ["presence penalty", "end token", "grammar", "top-k 5"])
def test_exact_decoding_is_silent_under_the_settings_that_faults_need(setting: str) -> None:
    lm = model(setting)
    evidence = decode(lm, np.random.default_rng(6), requests=64, tokens=TOKENS)
    assert tokens_to_alarm(side_by_side(evidence), lm, 0) == np.inf
    ended = [e for e in evidence if e.rows < TOKENS]
    assert bool(ended) is lm.ends
    assert all(e.token[-1] == END for e in ended)


def shares(name: str) -> dict[str, float]:
    """What one can see of how a control decodes."""
    control = CONTROLS[name]
    lm = control.prepare(model())
    rng = np.random.default_rng(0)
    found = control.seen(decode_with(control.sampler, lm, rng, requests=40, tokens=TOKENS), rng)
    kind = np.concatenate([e.kind for e in found])
    k = np.concatenate([e.k for e in found])
    true = np.concatenate([lm.p[lm.context(e.token[:-2], e.token[1:-1])] for e in found])
    shown = np.concatenate([e.p[2:] for e in found])
    q = np.concatenate([e.q[2:] for e in found])
    return {
        "accepted": float((kind == 0).mean()),
        "early bonus": float(((kind == BONUS) & (k < 4)).mean()),
        "p moved": float(np.abs(true - shown).sum(axis=1).mean()),
        "q apart": float(np.abs(true - q).sum(axis=1).mean()),
        "q peak": float(q.max(axis=1).mean()),
    }


def test_every_control_differs_from_plain_decoding_in_what_it_is_named_for() -> None:
    seen = {name: shares(name) for name in CONTROLS}
    plain = seen["exact"]
    assert plain["p moved"] < 1e-6
    assert plain["early bonus"] == 0
    assert seen["target-match coupling"]["accepted"] < plain["accepted"] - 0.1
    assert seen["one-hot exact"]["q peak"] == 1
    assert seen["exact 2-candidate"]["accepted"] > plain["accepted"] + 0.02
    assert seen["stale draft cache"]["q apart"] > 1.5 * plain["q apart"]
    for numeric in ("bfloat16 logits", "logit noise of .03"):
        assert 1e-3 < seen[numeric]["p moved"] < 0.1
    assert seen["confidence-stopped windows"]["early bonus"] > 0.1
