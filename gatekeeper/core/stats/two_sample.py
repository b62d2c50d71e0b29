"""Two samples of texts compared, where neither p nor q is known: the last resort for black boxes.

Both tests take, for each prompt, token sequences of a candidate and of a baseline, drawn with seeds
of their own. Under H0 all sequences of a prompt are exchangeable, so the labels are permuted *within
each prompt* and p = (1 + b) / (1 + B), b counting the permutations at least as extreme (Phipson and
Smyth 2010): exact at every size, never 0, never NaN. Prompts need not resemble each other.

``mmd``
    squared maximum mean discrepancy (Gretton et al. 2012) with the kernel "share of positions that
    match". That kernel is the scalar product of one-hot positions, so it sees differences of the
    distribution at one position given the prompt, and nothing else: see ``BLIND``.
``repeats``
    do sequences of one prompt share longer beginnings in the candidate than in the baseline? Seeds
    that are ignored, or shared between requests, show here first.

Cost: N² (L + B) multiplications for a prompt with N sequences of L tokens in all, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, log
from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    ID = NDArray[np.int64]
    W = NDArray[np.float32]
    F = NDArray[np.float64]

__all__ = ["BLIND", "ENDED", "TwoSample", "log_labellings", "mmd", "padded", "repeats"]

BLIND = (
    "faults at bonus positions alone, such as a bonus drawn from the draft: not in 100,000 tokens",
    "mild faults of the acceptance rule, such as leniency of 1.1: not in 100,000 tokens",
    "faults that change only how the tokens of a text depend on each other",
    "faults that first show late in a text: two sound samples have drifted apart by then",
    "anything in prompts, lengths and sampling settings that were not sampled",
)
"""What two samples of texts cannot show; a report that rests on them says so."""

ENDED = -1
"""Stands for "the text has ended" in ``padded`` sequences: to end is an outcome as any token is."""

_LEAST = 2
_ROUNDING = 1e-6
_BATCH = 512


@dataclass(frozen=True)
class TwoSample:
    """``p_value`` in (0, 1]; ``statistic`` as its function says; how much it rests on.

    ``tokens`` counts both arms, without padding.
    """

    p_value: float
    statistic: float
    prompts: int
    sequences: int
    tokens: int
    permutations: int


def padded(sequences: Sequence[Sequence[int]], length: int) -> ID:
    """Sequences as one array [n, length]: cut there, or filled up with ``ENDED``."""
    out = np.full((len(sequences), length), ENDED, dtype=np.int64)
    for row, sequence in zip(out, sequences, strict=True):
        kept = list(sequence)[:length]
        row[: len(kept)] = kept
    return out


def log_labellings(candidate: int, baseline: int) -> float:
    """Natural log of the ways to label so many sequences of one prompt."""
    return log(comb(candidate + baseline, candidate))


def mmd(
    candidate: Mapping[str, ID],
    baseline: Mapping[str, ID],
    *,
    permutations: int,
    rng: np.random.Generator,
) -> TwoSample:
    """Test whether candidate and baseline draw their texts from one distribution per prompt.

    Arrays [n, L] of token ids for each prompt, at least two sequences an arm and of one length (see
    ``padded``). ``statistic`` is the unbiased squared MMD, averaged over prompts: 0 in expectation
    when the distributions at every position agree, at most 2.

    Raises:
        InputError: prompts, lengths or counts do not match, or are too few for ``permutations``.
    """
    return _test(candidate, baseline, _matches, _discrepancy, permutations=permutations, rng=rng)


def repeats(
    candidate: Mapping[str, ID],
    baseline: Mapping[str, ID],
    *,
    permutations: int,
    rng: np.random.Generator,
) -> TwoSample:
    """Test, one-sided, whether a candidate's texts repeat each other more than the baseline's do.

    Arguments and errors as ``mmd``. ``statistic``: shared beginning of two texts of one prompt as a
    share of their length, mean over pairs and prompts, candidate minus baseline.
    """
    return _test(candidate, baseline, _shared, _excess, permutations=permutations, rng=rng)


def _matches(tokens: ID) -> W:
    """Share of positions at which two sequences agree, [N, N]."""
    n, length = tokens.shape
    out = np.zeros((n, n), dtype=np.float32)
    for column in tokens.T:
        out += column[:, None] == column
    return out / np.float32(length)


def _shared(tokens: ID) -> W:
    """Length of the shared beginning of two sequences as a share of their length, [N, N]."""
    n, length = tokens.shape
    alike = np.ones((n, n), dtype=bool)
    out = np.zeros((n, n), dtype=np.float32)
    for column in tokens.T:
        alike &= column[:, None] == column
        out += alike
    return out / np.float32(length)


def _sums(pairs: W, ours: W) -> tuple[F, F, F]:
    """Sums of ``pairs`` within the labelled, within the others and across; ``ours`` [B, N] is 0 or 1."""
    mine = ours @ pairs
    within = np.vecdot(mine, ours).astype(np.float64)
    across = mine.sum(axis=1, dtype=np.float64) - within
    others = pairs.sum(dtype=np.float64) - within - 2 * across
    return within, others, across


def _discrepancy(pairs: W, ours: W, n: int, m: int) -> F:
    within, others, across = _sums(pairs, ours)
    # Every sequence matches itself: the unbiased form leaves the diagonal out.
    mean: F = (within - n) / (n * (n - 1)) + (others - m) / (m * (m - 1)) - 2 * across / (n * m)
    return mean


def _excess(pairs: W, ours: W, n: int, m: int) -> F:
    within, others, _ = _sums(pairs, ours)
    mean: F = (within - n) / (n * (n - 1)) - (others - m) / (m * (m - 1))
    return mean


def _test(
    candidate: Mapping[str, ID],
    baseline: Mapping[str, ID],
    kernel: Callable[[ID], W],
    statistic: Callable[[W, W, int, int], F],
    *,
    permutations: int,
    rng: np.random.Generator,
) -> TwoSample:
    _check(candidate, baseline, permutations)
    observed, permuted = 0.0, np.zeros(permutations)
    tokens = sequences = 0
    for prompt, mine in candidate.items():
        pool = np.concatenate([mine, baseline[prompt]])
        n, size = len(mine), len(pool)
        pairs = kernel(pool)
        labels = np.zeros(size, dtype=np.float32)
        labels[:n] = 1
        observed += float(statistic(pairs, labels[None], n, size - n)[0])
        for begin in range(0, permutations, _BATCH):
            part = permuted[begin : begin + _BATCH]
            shuffled = rng.permuted(np.tile(labels, (len(part), 1)), axis=1)
            part += statistic(pairs, shuffled, n, size - n)
        tokens += int((pool != ENDED).sum())
        sequences += size
    # Equal labellings must count as equal, whatever the order of float32 sums.
    extreme = int((permuted >= observed - _ROUNDING * len(candidate)).sum())
    return TwoSample(
        p_value=(1 + extreme) / (1 + permutations),
        statistic=observed / len(candidate),
        prompts=len(candidate),
        sequences=sequences,
        tokens=tokens,
        permutations=permutations,
    )


def _check(candidate: Mapping[str, ID], baseline: Mapping[str, ID], permutations: int) -> None:
    if permutations < 1:
        raise InputError(
            "must be 1 or more", field="permutations", value=permutations, remedy="use e.g. 1999"
        )
    if not candidate or candidate.keys() != baseline.keys():
        raise InputError(
            "must be the same prompts in both arms, and one at least",
            field="prompts",
            value=sorted(candidate.keys() ^ baseline.keys())[:3],
            remedy="sample every prompt from candidate and baseline",
        )
    labellings = 0.0
    for prompt, mine in candidate.items():
        theirs = baseline[prompt]
        if mine.ndim != 2 or theirs.ndim != 2 or mine.shape[1:] != theirs.shape[1:]:  # noqa: PLR2004 - sequences by positions
            raise InputError(
                "has arms of different shapes",
                field=f"sequences[{prompt}]",
                value=(mine.shape, theirs.shape),
                remedy="pass arrays [n, L] of one length L, see padded()",
            )
        if min(len(mine), len(theirs)) < _LEAST or mine.shape[1] == 0:
            raise InputError(
                "has too few samples",
                field=f"sequences[{prompt}]",
                value=(mine.shape, theirs.shape),
                remedy=f"sample each prompt {_LEAST} times or more in each arm",
            )
        labellings += log_labellings(len(mine), len(theirs))
    if labellings < log(permutations + 1):
        raise InputError(
            "allow fewer labellings than permutations are asked for",
            field="sequences",
            value=sum(len(mine) for mine in candidate.values()),
            remedy="sample more prompts, or each more often",
        )
