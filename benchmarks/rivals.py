"""Tests that others use for equivalence, at the best size they could have been given.

Each returns a p-value for ``n`` tokens of the candidate; fixed-size tests are compared by power, as if
that very n had been declared beforehand. ``group_sequential`` looks again and again and pays for it.
Bins that expect fewer than ten are merged, never dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from gatekeeper.core.stats.rows import recent, reduce_rows
from gatekeeper.core.stats.two_sample import mmd, padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gatekeeper.core.stats.evidence import RequestEvidence

    F = NDArray[np.float64]

__all__ = ["PERMUTATIONS", "group_sequential", "hamming", "per_prompt", "two_sample"]

EXPECTED = 10
PERMUTATIONS = 1999
POSITIONS = 8
"""First tokens of an answer that the per-prompt test compares; later ones are as good as unrelated."""


def _homogeneity(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """Two-sample chi-square on token ids; 1 where all of it merges into one bin."""
    size = int(max(a.max(), b.max())) + 1
    counts = np.stack([np.bincount(x, minlength=size) for x in (a, b)]).astype(np.float64)
    counts = counts[:, np.argsort(-counts.sum(axis=0), kind="stable")]
    smaller = min(len(a), len(b)) / (len(a) + len(b))
    enough = counts.sum(axis=0) * smaller >= EXPECTED
    kept, rest = counts[:, enough], counts[:, ~enough].sum(axis=1, keepdims=True)
    if rest.sum() * smaller >= EXPECTED:
        kept = np.concatenate([kept, rest], axis=1)
    elif kept.shape[1]:
        kept[:, -1:] += rest
    if kept.shape[1] < 2:  # noqa: PLR2004 - one bin compares nothing
        return 1.0
    return float(stats.chi2_contingency(kept, correction=False).pvalue)


def two_sample(candidate: Sequence[RequestEvidence], baseline: Sequence[RequestEvidence]) -> float:
    """Token ids of all texts together, candidate against baseline."""
    return _homogeneity(*(np.concatenate([e.token for e in arm]) for arm in (candidate, baseline)))


def _by_prompt(arm: Sequence[RequestEvidence]) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for e in arm:
        found.setdefault(str(e.prompt), []).append(e.token.tolist())
    return found


def per_prompt(candidate: Sequence[RequestEvidence], baseline: Sequence[RequestEvidence]) -> float:
    """Each of the first positions of each prompt by itself, Bonferroni over all that compare."""
    ours, theirs = _by_prompt(candidate), _by_prompt(baseline)
    found = []
    for prompt, mine in ours.items():
        a, b = padded(mine, POSITIONS), padded(theirs[prompt], POSITIONS)
        found += [_homogeneity(x + 1, y + 1) for x, y in zip(a.T, b.T, strict=True)]
    return min(1.0, min(found) * len(found))


def hamming(
    candidate: Sequence[RequestEvidence],
    baseline: Sequence[RequestEvidence],
    *,
    length: int,
    rng: np.random.Generator,
) -> float:
    """Two-sample MMD with the Hamming kernel, labels permuted within prompts."""
    ours, theirs = _by_prompt(candidate), _by_prompt(baseline)
    return mmd(
        {prompt: padded(texts, length) for prompt, texts in ours.items()},
        {prompt: padded(theirs[prompt], length) for prompt in ours},
        permutations=PERMUTATIONS,
        rng=rng,
    ).p_value


def group_sequential(
    evidence: Sequence[RequestEvidence], looks: Sequence[int], *, alpha: float
) -> float:
    """Tokens at the first look that rejects, inf where none does; with p and q.

    Observed less expected counts of (rank, k) and of (log q/p, k), each a quadratic form in its
    exact covariance; alpha is shared by looks and tables (Bonferroni).
    """
    tables = [_contrasts(e) for e in evidence]
    share = alpha / (len(looks) * len(tables[0]))
    ends = np.cumsum([e.rows for e in evidence])
    sums: list[list[Any]] = [[0.0, 0.0, 0.0] for _ in tables[0]]
    done = 0
    for look in looks:
        while done < len(tables) and ends[done] <= look:
            for total, part in zip(sums, tables[done], strict=True):
                for i, x in enumerate(part):
                    total[i] = total[i] + x
            done += 1
        if done and min(_quadratic(*total) for total in sums) <= share:
            return float(ends[done - 1])
    return float("inf")


def _contrasts(e: RequestEvidence) -> list[tuple[F, F, F]]:
    """(Σ observed − expected, Σ covariance, Σ expected) of both tables for one request."""
    V = e.p.shape[1]
    ones = np.ones(V, dtype=np.float32)
    k = np.zeros(e.rows, dtype=np.int64) if e.k is None else e.k
    rows = reduce_rows(
        e.token,
        e.p,
        e.q,
        k,
        k < 0,
        repeat=recent(e.token, k, e.p),
        id_weights=ones,
        bits=ones[:, None],
    )
    strata = np.minimum(k, POSITIONS - 1)
    return [
        _cells(rows.rank_bin, rows.rank_mass, strata),
        _cells(rows.ratio_bin, rows.ratio_mass, strata),
    ]


def _cells(which: NDArray[np.int64], mass: F, strata: NDArray[np.int64]) -> tuple[F, F, F]:
    bins = mass.shape[1]
    observed = np.zeros((POSITIONS, bins))
    expected, outer = np.zeros((POSITIONS, bins)), np.zeros((POSITIONS, bins, bins))
    np.add.at(observed, (strata, which), 1.0)
    np.add.at(expected, strata, mass)
    np.add.at(outer, strata, mass[:, :, None] * mass[:, None, :])
    covariance = np.zeros((POSITIONS * bins, POSITIONS * bins))
    for s in range(POSITIONS):
        at = slice(s * bins, (s + 1) * bins)
        covariance[at, at] = np.diag(expected[s]) - outer[s]
    return (observed - expected).ravel(), covariance, expected.ravel()


def _quadratic(s: F, covariance: F, expected: F) -> float:
    """P-value of s' C⁻ s; cells that expect too little are summed into one."""
    enough = expected >= EXPECTED
    merge = np.concatenate([np.eye(len(s))[enough], (~enough)[None].astype(np.float64)])
    s, covariance = merge @ s, merge @ covariance @ merge.T
    values, vectors = np.linalg.eigh(covariance)
    real = values > 1e-6 * max(values.max(), 1.0)
    if not real.any():
        return 1.0
    along = vectors[:, real].T @ s
    return float(stats.chi2.sf((along**2 / values[real]).sum(), real.sum()))
