"""The promise of the statistics: exact algorithms stay silent, whatever their disguise."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from faults.benign import CONTROLS
from faults.detection import side_by_side
from faults.markov import filtered
from faults.synthetic import MarkovLM, arrays, decode, decode_with, draw, softmax

from gatekeeper.core.stats import tolerance
from gatekeeper.core.stats.eprocess import MEMBERS, Bank, bonus_by_index, log_e
from gatekeeper.core.stats.evidence import RequestEvidence
from gatekeeper.gates.equivalence_check import check

pytestmark = pytest.mark.calibration

ALPHA = 1e-3


@lru_cache
def model(vocabulary: int = 80, contexts: int = 512) -> MarkovLM:
    return MarkovLM.make(
        np.random.default_rng(2), vocabulary=vocabulary, contexts=contexts, spread=3.5, noise=0.9
    )


def largest_e(
    evidence: Sequence[RequestEvidence], vocabulary: int, *, delta: float = 0.0
) -> tuple[float, np.ndarray]:
    """Largest log E at the ends of requests, for each member alone and for the bank."""
    bank = Bank(vocabulary, seed=0, delta=delta)
    total, best = np.zeros(len(MEMBERS)), -np.inf
    member_best = np.full(len(MEMBERS), -np.inf)
    for e in evidence:
        total = total + bank.add(e, bonus_by_index(e, None, kind_is_past=False)).log_f_envelope.sum(
            axis=0
        )
        best = max(best, float(log_e(total)))
        member_best = np.maximum(member_best, total)
    return best, member_best


def test_exact_decoding_alarms_no_more_than_the_e_process_allows() -> None:
    runs = 120
    best, members = [], []
    for seed in range(runs):
        evidence = decode(
            model(), np.random.default_rng(seed), requests=8, tokens=64, gamma=4 if seed % 2 else 1
        )
        b, m = largest_e(evidence, 80)
        best.append(b)
        members.append(m)
    best, members = np.array(best), np.array(members)
    assert (best >= np.log(1 / ALPHA)).sum() == 0
    # Ville: P(sup E >= x) <= 1/x. At x = 10, 120 runs expect at most 12; 24 is 3.6 sd above.
    assert (best >= np.log(10)).sum() <= 24
    per_member = (members >= np.log(10)).sum(axis=0)
    assert per_member.max() <= 27, MEMBERS[int(per_member.argmax())]
    # The test is alive: some member does reach 3 by chance.
    assert (members >= np.log(3)).any()


def variants() -> dict[str, MarkovLM]:
    lm = model()
    one_hot = np.zeros_like(lm.q)
    one_hot[np.arange(len(lm.q)), lm.q.argmax(axis=1)] = 1
    own = np.random.default_rng(4)
    return {
        "top-p and top-k": MarkovLM(
            filtered(lm.p, top_p=0.9, top_k=20), filtered(lm.q, top_p=0.9, top_k=20)
        ),
        "filtered target, soft proposal": MarkovLM(filtered(lm.p, top_p=0.8), lm.q),
        "one-hot proposal": MarkovLM(lm.p, one_hot),
        "one-hot target": MarkovLM(np.eye(80, dtype=np.float32)[lm.p.argmax(axis=1)], lm.q),
        "useless proposal": MarkovLM(lm.p, softmax(own.standard_normal(lm.p.shape))),
        "perfect proposal": MarkovLM(lm.p, lm.p),
    }


@pytest.mark.parametrize("name", variants())
def test_exact_variants_stay_silent(name: str) -> None:
    for seed in range(8):
        evidence = decode(variants()[name], np.random.default_rng(seed), requests=20, tokens=64)
        assert largest_e(evidence, 80)[0] < np.log(1 / ALPHA)


# 200 runs of each, with 1,000 tokens, are in `make verify STAGE=detection`.
@pytest.mark.parametrize("name", CONTROLS)
def test_benign_controls_never_fail(name: str) -> None:
    control = CONTROLS[name]
    lm = control.prepare(model())
    for seed in range(5):
        rng = np.random.default_rng(seed)
        evidence = decode_with(control.sampler, lm, rng, requests=32, tokens=32)
        shown = control.seen(side_by_side(evidence), rng)
        assert check(arrays(shown), seed=seed)["outcome"] != "FAIL"


def test_targets_that_lie_outside_the_support_for_numeric_reasons_stay_silent() -> None:
    # 0.5 % of the mass is cut off p: a top-p edge that another batch shape puts elsewhere.
    lm = MarkovLM(filtered(model().p, top_p=0.995), model().q)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        evidence = []
        for e in decode(lm, rng, requests=40, tokens=64):
            token = e.token.copy()
            out = rng.random(e.rows) < 0.005
            outside = (e.p <= 0) + 1e-12
            token[out] = draw(rng, outside)[out]
            evidence.append(RequestEvidence(e.prompt, e.replicate, e.request, token, e.p, e.q, e.k))
        by_member = largest_e(evidence, 80)[1]
        support = [i for i, m in enumerate(MEMBERS) if m.startswith("outside")]
        assert by_member[support].max() < np.log(1 / ALPHA)


def test_the_envelope_covers_a_systematic_shift_that_trips_the_bare_bank() -> None:
    # p' = tempered p is inside |log p'/p| <= delta only up to its largest deviation.
    lm = model()
    shifted = lm.p.astype(float) ** 1.15
    shifted = (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)
    inside = np.abs(np.log(shifted / lm.p)) <= 0.25
    limited = np.where(inside, shifted, lm.p * np.exp(0.25 * np.sign(shifted - lm.p)))
    truth = MarkovLM((limited / limited.sum(axis=1, keepdims=True)).astype(np.float32), lm.q)
    delta = float(np.abs(np.log(truth.p / lm.p)).max()) + 1e-4
    # p of a row names its context, so the unshifted target's view of it can be looked up.
    context = {row.tobytes(): i for i, row in enumerate(truth.p)}
    bare, covered = [], []
    for seed in range(4):
        evidence = []
        for e in decode(truth, np.random.default_rng(seed), requests=80, tokens=64):
            same = [context[row.tobytes()] for row in e.p]
            evidence.append(
                RequestEvidence(e.prompt, e.replicate, e.request, e.token, lm.p[same], e.q, e.k)
            )
        bare.append(largest_e(evidence, 80)[0])
        covered.append(largest_e(evidence, 80, delta=delta)[0])
    assert max(bare) >= np.log(1 / ALPHA)
    assert max(covered) < np.log(1 / ALPHA)


def test_tolerance_bounds_hold_at_all_times() -> None:
    # P(bound ever wrong) <= a on each side, here for a mean deviation of exactly 0.
    rng = np.random.default_rng(0)
    runs, n, a = 400, 3000, 0.05
    wrong = 0
    for _ in range(runs):
        mean = rng.uniform(0.02, 0.6, n)
        y = (rng.random(n) < mean) - mean
        low, high = tolerance.bounds(np.arange(1, n + 1), np.cumsum(y), np.cumsum(y**2), 0.03, a)
        wrong += bool((low > 0).any() or (high < 0).any())
    # Two sides at 5 %: at most 40 expected of 400; the bound is not vacuous either.
    assert 0 < wrong <= 55


def test_median_tokens_to_pass_follow_fifteen_v_over_tolerance_squared() -> None:
    rng = np.random.default_rng(1)
    features, tol = 11, 0.03
    declared = tolerance.Sequences(tol, tol, 0.05, 0.001, 22)
    means = np.array([0.5, 0.5, 0.5, 0.4, 0.4, 0.3, 0.3, 0.2, 0.1, 0.1, 0.05])
    passed = []
    for _ in range(60):
        n = 9000
        y = (rng.random((n, features)) < means) - means
        count = np.broadcast_to(np.arange(1, n + 1)[:, None], y.shape)
        status = declared.status("window", count, np.cumsum(y, axis=0), np.cumsum(y**2, axis=0))
        assert (status >= 0).all()
        done = np.flatnonzero((status > 0).all(axis=1))
        passed.append(done[0] if len(done) else np.inf)
    assert 0.5 <= np.median(passed) / (15 * 0.25 / tol**2) <= 1.5
