"""The law of the verifier, computed: every number it reads is swept, nothing is simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from engine_faults import VERIFIERS  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.tree import CandidateTree  # noqa: E402
from gatekeeper_adapters.engines.reference.uniforms import (  # noqa: E402
    Numbers,
    Uniforms,
    uniforms,
)
from gatekeeper_adapters.engines.reference.verify import (  # noqa: E402
    BONUS,
    CORRECTION,
    EXACT,
    Verdict,
    Verifier,
    verify,
    verify_greedy,
)

GRID = 800
ALWAYS, NEVER = 0.0, 1.0 - 1e-12


def judged(rows: Any, draft: int, q: Any, numbers: Uniforms, verifier: Verifier = EXACT) -> Verdict:
    """Verify one draft drawn from ``q[0]``; ``q[1]``, where present, belongs to the bonus position."""
    tree = CandidateTree.chain([draft], list(q))
    return verify(lambda context, _: rows[context], tree, lambda *_: numbers, verifier)


def law_of_one_position(p: Any, q: Any, verifier: Verifier) -> np.ndarray:
    """Distribution of the first emitted token for one draft from q, to within 1/GRID."""
    rows = torch.stack([p, p])
    law = np.zeros(len(p))
    for draft in np.flatnonzero(q.numpy()):
        acceptance = threshold(rows, q, int(draft), verifier)
        law[draft] += float(q[draft]) * acceptance
        if acceptance < 1.0:
            law += float(q[draft]) * (1.0 - acceptance) * correction(rows, q, int(draft), verifier)
    return law


def threshold(rows: Any, q: Any, draft: int, verifier: Verifier) -> float:
    """The largest accept number that still accepts, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        verdict = judged(rows, draft, q.unsqueeze(0), Uniforms(0, middle, 0.5), verifier)
        low, high = (middle, high) if verdict.path else (low, middle)
    return high


def correction(rows: Any, q: Any, draft: int, verifier: Verifier) -> np.ndarray:
    out = np.zeros(rows.shape[1])
    for u in (np.arange(GRID) + 0.5) / GRID:
        verdict = judged(rows, draft, q.unsqueeze(0), Uniforms(0, NEVER, u), verifier)
        assert verdict.kind == CORRECTION
        out[verdict.token] += 1 / GRID
    return out


def pair(seed: int, size: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    return torch.tensor(p, dtype=torch.float32), torch.tensor(q, dtype=torch.float32)


@pytest.mark.parametrize("seed", range(4))
def test_the_emitted_token_follows_p_whatever_q_is(seed: int) -> None:
    p, q = pair(seed)
    np.testing.assert_allclose(law_of_one_position(p, q, EXACT), p.numpy(), atol=2 / GRID)


def test_supports_may_differ() -> None:
    p = torch.tensor([0.5, 0.5, 0.0, 0.0])
    q = torch.tensor([0.0, 0.3, 0.7, 0.0])
    np.testing.assert_allclose(law_of_one_position(p, q, EXACT), p.numpy(), atol=2 / GRID)


def test_deterministic_candidates_are_point_masses() -> None:
    p, _ = pair(9)
    for draft in range(4):
        q = torch.zeros(4)
        q[draft] = 1.0
        np.testing.assert_allclose(law_of_one_position(p, q, EXACT), p.numpy(), atol=2 / GRID)


@pytest.mark.parametrize("name", [n for n in VERIFIERS if n != "bonus_from_q"])
def test_planted_faults_change_the_law(name: str) -> None:
    distances = []
    for seed in range(3):
        p, q = pair(seed)
        law = law_of_one_position(p, q, VERIFIERS[name])
        distances.append(np.abs(law - p.numpy()).sum() / 2)
    assert max(distances) > 0.02


def test_bonus_from_q_is_seen_at_the_bonus_only() -> None:
    p, q = pair(3)
    rows, proposal = torch.stack([p, p]), torch.stack([q, q])
    fault = VERIFIERS["bonus_from_q"]
    counts = np.zeros((2, 4))
    for u in (np.arange(GRID) + 0.5) / GRID:
        for row, verifier in zip(counts, (EXACT, fault), strict=True):
            verdict = judged(rows, 1, proposal, Uniforms(0, ALWAYS, u), verifier)
            assert verdict.kind == BONUS
            row[verdict.token] += 1 / GRID
    np.testing.assert_allclose(counts[0], p.numpy(), atol=1 / GRID)
    np.testing.assert_allclose(counts[1], q.numpy(), atol=1 / GRID)


def test_equal_distributions_accept_everything_and_never_divide_by_nothing() -> None:
    p, _ = pair(1)
    rows, q = torch.stack([p, p]), p.unsqueeze(0)
    for draft in range(4):
        assert judged(rows, draft, q, Uniforms(0, NEVER, 0.3)).path == (0,)
    # p below q by rounding only: a rejection then has an empty residual and falls back to p
    q = torch.nextafter(p, torch.ones(4)).unsqueeze(0)
    verdict = judged(rows, 0, q, Uniforms(0, 1.0, 0.3))
    assert verdict.kind == CORRECTION
    assert float(p[verdict.token]) > 0


def test_the_greedy_limit_is_the_general_rule_on_point_masses() -> None:
    eye = torch.eye(5)
    best = [3, 1, 4]
    for drafts in ([3, 1], [3, 2], [0, 1], []):
        tree = CandidateTree.chain(drafts)
        general = verify(lambda context, _: eye[best[context]], tree, Numbers(7, 0, 3))
        assert general == verify_greedy(lambda context, _: best[context], tree)


def test_numbers_belong_to_positions() -> None:
    whole = uniforms(11, 0, 6)
    assert uniforms(11, 2, 3) == whole[2:5]
    assert uniforms(11, 4, 1) == whole[4:5]
    assert uniforms(12, 0, 6) != whole
    assert uniforms(-1, 0, 2) == uniforms(2**64 - 1, 0, 2)
    values = np.array(uniforms(3, 0, 20_000))
    assert abs(values.mean() - 0.5) < 0.005
    assert np.abs(np.corrcoef(values.T) - np.eye(3)).max() < 0.03
