"""The passes over the vocabulary, done once per row and shared by every statistic.

At V = 49,152 one pass over a row costs 5 to 150 µs, so whatever needs a sum over the vocabulary is
computed here and nowhere else; families and features then work on a few numbers per row. No sort:
the order statistics that are needed are 32, and ranks are counted.

Sums are dot products in float32 (``numpy.vecdot``): their relative error, about 1e-6 and without a
direction, is far below that of p itself. Two logarithms and two exponentials, of p and of q/p, take
a third of the time. Passes write into a few arrays that stay: fresh ones of this size cost more in page
faults than the arithmetic on them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    F = NDArray[np.float64]
    ID = NDArray[np.int64]
    B = NDArray[np.bool_]
    W = NDArray[np.float32]

__all__ = ["RANK_EDGES", "RATIO_EDGES", "RATIO_LIMIT", "THETAS", "Rows", "recent", "reduce_rows"]

THETAS = (-0.3, -0.1, 0.1, 0.3)
"""Exponents of the tilts in log p and log q/p."""

RATIO_LIMIT = 4.0
"""log q/p is clipped to ±4, so that its exponential moments exist where q or p is nearly 0."""

RATIO_EDGES = (-2.0, -1.0, -0.4, 0.0, 0.4, 1.0, 2.0)
"""Edges of the bins of log q/p; a token is in bin ``#{edges < log q/p}``."""

RANK_EDGES = (0, 1, 2, 3, 4, 8, 16, 32)
"""First rank (0 = most probable) of each rank bin."""

_RECENT = 32
_TINY = np.float32(1e-37)
_CHUNK = 65_536
_BLOCK = 256


@dataclass(frozen=True)
class Rows:
    """Per-row numbers of n evidence rows; every expectation is under p. Arrays of length n.

    ``p_x``, ``q_x`` probability of the emitted token; ``below`` mass of smaller ids,
    ``above`` mass of more probable tokens (ties by id), so that ``below + V p_x`` and
    ``above + V p_x`` are uniform for V uniform; ``has_q`` marks rows whose q is known. Tilts: ``z``
    is E p^θ, ``ratio_z`` E exp(θ s) with s the clipped log q/p [n, len(THETAS)]; ``*_dev`` is
    E|f − 1| of the factor (0 unless ``envelope``). ``beta`` Σ min(p, q). ``rank_mass`` and
    ``ratio_mass`` [n, bins] the probability of each bin, ``repeat_mass`` [n, 3] of tokens not seen
    lately, seen before this round, seen in this round. ``id_z`` E r of the weights passed in.
    """

    token: ID
    k: ID
    bonus: B
    has_q: B
    p_x: F
    q_x: F
    p_max: F
    below: F
    above: F
    rank: ID
    rank_bin: ID
    rank_mass: F
    z: F
    z_dev: F
    ratio: F
    ratio_z: F
    ratio_dev: F
    ratio_bin: ID
    ratio_mass: F
    beta: F
    unsubtracted_dev: F
    from_q_dev: F
    draft_arg_max: B
    draft_arg_max_p: F
    head_mass: F
    tail_mass: F
    bits_mass: F
    end: B
    end_mass: F
    repeat_bin: ID
    repeat_mass: F
    id_z: F
    id_dev: F
    id_x: F

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.token)


def recent(token: ID, k: ID, p: NDArray[np.float32]) -> tuple[ID, F]:
    """Repetition bins of each row over the last 32 tokens of the same request.

    Returns the bin of the emitted token (0 not seen, 1 seen before this round, 2 seen in this
    round, that is among the last k tokens) and the probability of each bin [n, 3].
    """
    n = len(token)
    lag = np.arange(1, _RECENT + 1)
    where = np.arange(n)[:, None] - lag
    known = where >= 0
    past = np.where(known, token[np.maximum(where, 0)], -1)
    # A token seen at several lags counts once, at its latest appearance.
    repeated = np.zeros_like(known)
    for later in range(_RECENT - 1):
        repeated[:, later + 1 :] |= past[:, later + 1 :] == past[:, later : later + 1]
    counted = known & ~repeated
    mass = np.where(counted, p[np.arange(n)[:, None], np.maximum(past, 0)], 0.0)
    here = lag <= np.minimum(k, _RECENT)[:, None]
    inside = (mass * here).sum(axis=1, dtype=np.float64)
    before = (mass * ~here).sum(axis=1, dtype=np.float64)
    same = counted & (past == token[:, None])
    which = np.where((same & here).any(axis=1), 2, np.where(same.any(axis=1), 1, 0))
    return which, np.stack([np.maximum(1.0 - inside - before, 0.0), before, inside], axis=1)


def reduce_rows(
    token: ID,
    p: NDArray[np.float32],
    q: NDArray[np.float32] | None,
    k: ID,
    bonus: B,
    *,
    repeat: tuple[ID, F],
    id_weights: NDArray[np.float32],
    bits: NDArray[np.float32],
    end_tokens: tuple[int, ...] = (),
    envelope: bool = False,
) -> Rows:
    """Reduce rows of distributions to ``Rows``; a few rows at a time, so that they stay in cache.

    ``p``, ``q`` [n, V] need not be normalised to the last digit: rows are rescaled here.
    ``id_weights`` [V] are the learned weights of token ids, ``bits`` [V, j] 0/1 features of ids.
    """
    size = min(max(1, _CHUNK // p.shape[1]), len(token))
    by_id = np.ascontiguousarray(np.vstack([bits.T, id_weights]))
    scratch = np.empty((5, size, p.shape[1]), dtype=np.float32)
    parts = [
        _reduce(
            token[i : i + size],
            p[i : i + size],
            None if q is None else q[i : i + size],
            place=(k[i : i + size], bonus[i : i + size]),
            repeat=(repeat[0][i : i + size], repeat[1][i : i + size]),
            by_id=by_id,
            scratch=scratch[:, : len(token) - i],
            end_tokens=end_tokens,
            envelope=envelope,
        )
        for i in range(0, len(token), size)
    ]
    if len(parts) == 1:
        return parts[0]
    return Rows(
        **{f.name: np.concatenate([getattr(r, f.name) for r in parts]) for f in fields(Rows)}
    )


def _dot(a: W, b: W) -> F:
    total: F = np.vecdot(a, b).astype(np.float64)
    return total


def _normalised(a: W, out: W) -> W:
    np.divide(a, a.sum(axis=1, keepdims=True), out=out)
    return out


def _above(a: W, limit: W | np.float32, out: W) -> W:
    """1 where a > limit, else 0, as the float32 that a dot product wants."""
    out[...] = a > limit
    return out


def _reduce(
    token: ID,
    p: W,
    q: W | None,
    *,
    place: tuple[ID, B],
    repeat: tuple[ID, F],
    by_id: W,
    scratch: W,
    end_tokens: tuple[int, ...],
    envelope: bool,
) -> Rows:
    n, at = len(token), np.arange(len(token))
    p = _normalised(p, scratch[0])
    spare = tuple(scratch[1:])
    p_x = p[at, token]
    same = p == p_x[:, None]
    ids = token.tolist()
    earlier = np.array([np.count_nonzero(row[:t]) for row, t in zip(same, ids, strict=True)])
    below = np.array([row[:t].sum() for row, t in zip(p, ids, strict=True)], dtype=np.float64)
    more = p > p_x[:, None]
    rank = np.array([np.count_nonzero(row) for row in more]) + earlier
    spare[0][...] = more
    above = _dot(p, spare[0]) + p_x * earlier
    top = _largest(p, RANK_EDGES[-1])
    cumulated = np.concatenate([np.zeros((n, 1)), np.cumsum(top, axis=1)], axis=1)
    edges = np.minimum(np.array(RANK_EDGES), top.shape[1])
    rank_mass = np.diff(np.concatenate([cumulated[:, edges], np.ones((n, 1))], axis=1), axis=1)
    s = np.log(np.add(p, _TINY, out=spare[0]), out=spare[0])
    z, z_dev = _moments(p, s, spare[1:], envelope=envelope)
    means = (p @ by_id.T).astype(np.float64)
    id_dev = np.zeros(n)
    if envelope:
        f = np.divide(by_id[-1], means[:, -1:].astype(np.float32), out=spare[0])
        f -= np.float32(1)
        id_dev = _dot(p, np.abs(f, out=f))
    ends = np.array(end_tokens, dtype=np.int64)
    return Rows(
        token=token,
        k=place[0],
        bonus=place[1],
        p_x=p_x.astype(np.float64),
        p_max=top[:, 0],
        below=below,
        above=above,
        rank=rank,
        rank_bin=np.searchsorted(RANK_EDGES, rank, side="right") - 1,
        rank_mass=np.maximum(rank_mass, 0.0),
        z=z,
        z_dev=z_dev,
        head_mass=_mass_from(p, 0.1, top),
        tail_mass=np.maximum(1.0 - _mass_from(p, 0.01, top), 0.0),
        bits_mass=means[:, :-1],
        end=np.isin(token, ends),
        end_mass=p[:, ends].sum(axis=1, dtype=np.float64),
        repeat_bin=repeat[0],
        repeat_mass=repeat[1],
        id_z=means[:, -1],
        id_dev=id_dev,
        id_x=by_id[-1, token].astype(np.float64),
        **_with_q(p, q, token, spare, envelope=envelope),
    )


def _mass_from(p: W, least: float, top: F) -> F:
    """Mass of the tokens of probability ``least`` and more; ``top`` are the largest, descending."""
    limit = np.float32(least)
    enough = bool((top[:, -1] < limit).all())
    kept = np.where(top >= limit, top, 0.0) if enough else np.where(p >= limit, p, 0)
    mass: F = kept.sum(axis=1, dtype=np.float64)
    return mass


def _largest(p: W, count: int) -> F:
    """The ``count`` largest of each row, or all of a shorter one, in descending order.

    At least ``count`` numbers reach the count-th largest of the maxima of blocks, and seldom many
    more: only those are sorted. Where they are many (ties, or a top-k mask: zeros) a partition helps.
    """
    n, V = p.shape
    if count * _BLOCK > V:
        kept = p if count >= V else np.partition(p, V - count, axis=1)[:, -count:]
        return -np.sort(-kept, axis=1).astype(np.float64)
    whole = V // _BLOCK
    peaks = p[:, : whole * _BLOCK].reshape(n, whole, _BLOCK).max(axis=2)
    least = np.partition(peaks, whole - count, axis=1)[:, whole - count]
    out = np.empty((n, count), dtype=np.float64)
    for i in range(n):
        kept = p[i, p[i] >= least[i]]
        if len(kept) > _BLOCK:
            kept = np.partition(kept, len(kept) - count)[-count:]
        out[i] = np.sort(kept)[::-1][:count]
    return out


def _moments(p: W, s: W, spare: Sequence[W], *, envelope: bool) -> tuple[F, F]:
    """E exp(θ s) and E|exp(θ s)/E exp(θ s) − 1| for each θ of ``THETAS``; overwrites ``s``, ``spare``.

    One exponential serves all: the other powers of exp(s/10) are products. The deviation is twice
    that of the part above the mean.
    """
    s *= np.float32(0.1)
    w = np.exp(s, out=s)
    inverse = np.divide(np.float32(1), w, out=spare[0])
    power, part = spare[1], spare[2]
    z, dev = [], []
    for theta in THETAS:
        power[...] = w if theta > 0 else inverse
        if abs(theta) == 0.3:  # noqa: PLR2004 - THETAS are ±.1, ±.3
            power *= power
            power *= w if theta > 0 else inverse
        total = _dot(p, power)
        z.append(total)
        if envelope:
            _above(power, total[:, None].astype(np.float32), part)
            part *= p
            dev.append(2 * (_dot(part, power) / total - part.sum(axis=1)))
        else:
            dev.append(np.zeros(len(p)))
    return np.stack(z, axis=1), np.maximum(np.stack(dev, axis=1), 0.0)


def _with_q(p: W, q: W | None, token: ID, spare: Sequence[W], *, envelope: bool) -> dict[str, Any]:
    n, at = len(token), np.arange(len(token))
    bins = len(RATIO_EDGES) + 1
    has_q = np.zeros(n, dtype=bool) if q is None else ~np.isnan(q[:, 0])
    if q is None or not has_q.any():
        return {
            "has_q": has_q,
            "q_x": np.full(n, np.nan),
            "ratio": np.zeros(n),
            "ratio_z": np.ones((n, len(THETAS))),
            "ratio_dev": np.zeros((n, len(THETAS))),
            "ratio_bin": np.zeros(n, dtype=np.int64),
            "ratio_mass": np.full((n, bins), 1 / bins),
            "beta": np.ones(n),
            "unsubtracted_dev": np.zeros(n),
            "from_q_dev": np.zeros(n),
            "draft_arg_max": np.zeros(n, dtype=bool),
            "draft_arg_max_p": np.zeros(n),
        }
    if not has_q.all():
        # Where q is unknown p stands in: every ratio is 1, and the factors are neutral.
        q = np.where(has_q[:, None], q, p)
    q = _normalised(q, spare[0])
    ratio = np.add(p, _TINY, out=spare[1])
    np.divide(np.add(q, _TINY, out=spare[2]), ratio, out=ratio)
    limit = np.float32(np.exp(RATIO_LIMIT))
    np.clip(ratio, 1 / limit, limit, out=ratio)
    np.log(ratio, out=ratio)
    beyond = [_dot(p, _above(ratio, np.float32(edge), spare[2])) for edge in RATIO_EDGES]
    ratio_x = ratio[at, token]
    least = np.minimum(p, q, out=spare[2])
    beta = least.sum(axis=1)
    unsubtracted_dev, from_q_dev = np.zeros(n), np.zeros(n)
    if envelope:
        shift = np.multiply(p, -beta[:, None], out=spare[3])
        shift += least
        unsubtracted_dev = np.abs(shift, out=shift).sum(axis=1, dtype=np.float64)
        np.multiply(q, 1 - beta[:, None], out=shift)
        shift += least
        shift -= p
        from_q_dev = _dot(np.abs(shift, out=shift), _above(p, np.float32(0), least))
    best = q.argmax(axis=1)
    q_x = q[at, token].astype(np.float64)
    ratio_z, ratio_dev = _moments(p, ratio, (spare[0], *spare[2:]), envelope=envelope)
    return {
        "has_q": has_q,
        "q_x": q_x,
        "ratio": ratio_x.astype(np.float64),
        "ratio_z": ratio_z,
        "ratio_dev": ratio_dev,
        "ratio_bin": np.searchsorted(np.array(RATIO_EDGES, dtype=np.float32), ratio_x),
        "ratio_mass": -np.diff(np.stack([np.ones(n), *beyond, np.zeros(n)], axis=1), axis=1),
        "beta": beta.astype(np.float64),
        "unsubtracted_dev": unsubtracted_dev,
        "from_q_dev": from_q_dev,
        "draft_arg_max": best == token,
        "draft_arg_max_p": p[at, best].astype(np.float64),
    }
