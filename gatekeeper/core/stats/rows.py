"""The passes over the vocabulary, done once per row and shared by every statistic.

At V = 49,152 one pass over a row costs 10 to 200 µs, so whatever needs a sum over the vocabulary is
computed here and nowhere else; families and features then work on a few numbers per row. No sort:
the order statistics that are needed are 32 (``numpy.partition``), and ranks are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F = NDArray[np.float64]
    ID = NDArray[np.int64]
    B = NDArray[np.bool_]

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
    size = max(1, _CHUNK // p.shape[1])
    parts = [
        _reduce(
            token[i : i + size],
            p[i : i + size],
            None if q is None else q[i : i + size],
            place=(k[i : i + size], bonus[i : i + size]),
            repeat=(repeat[0][i : i + size], repeat[1][i : i + size]),
            id_columns=np.column_stack([bits, id_weights]),
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


def _sum(a: NDArray[np.float32]) -> F:
    total: F = a.sum(axis=1, dtype=np.float64)
    return total


def _normalised(a: NDArray[np.float32]) -> NDArray[np.float32]:
    out: NDArray[np.float32] = np.divide(a, _sum(a)[:, None].astype(np.float32))
    return out


def _reduce(
    token: ID,
    p: NDArray[np.float32],
    q: NDArray[np.float32] | None,
    *,
    place: tuple[ID, B],
    repeat: tuple[ID, F],
    id_columns: NDArray[np.float32],
    end_tokens: tuple[int, ...],
    envelope: bool,
) -> Rows:
    n, V = p.shape
    at = np.arange(n)
    p = _normalised(p)
    p_x = p[at, token]
    more = p > p_x[:, None]
    same = p == p_x[:, None]
    earlier = same & (np.arange(V) < token[:, None])
    rank = (more.sum(axis=1) + earlier.sum(axis=1)).astype(np.int64)
    above = _sum(p * more) + _sum(p * earlier)
    below = np.array([row[:t].sum(dtype=np.float64) for row, t in zip(p, token, strict=True)])
    top = -np.sort(-_largest(p, RANK_EDGES[-1]), axis=1).astype(np.float64)
    cumulated = np.concatenate([np.zeros((n, 1)), np.cumsum(top, axis=1)], axis=1)
    edges = np.minimum(np.array(RANK_EDGES), top.shape[1])
    rank_mass = np.diff(np.concatenate([cumulated[:, edges], np.ones((n, 1))], axis=1), axis=1)
    log_p = np.log(np.maximum(p, _TINY))
    z, z_dev = _moments(p, log_p, envelope=envelope)
    by_id = (p @ id_columns).astype(np.float64)
    id_x = id_columns[token, -1].astype(np.float64)
    id_dev = np.zeros(n)
    if envelope:
        id_dev = _sum(p * np.abs(id_columns[:, -1] / by_id[:, -1:].astype(np.float32) - 1))
    ends = np.array(end_tokens, dtype=np.int64)
    p_max = p.max(axis=1)
    return Rows(
        token=token,
        k=place[0],
        bonus=place[1],
        p_x=p_x.astype(np.float64),
        p_max=p_max.astype(np.float64),
        below=below,
        above=above,
        rank=rank,
        rank_bin=np.searchsorted(RANK_EDGES, rank, side="right") - 1,
        rank_mass=np.maximum(rank_mass, 0.0),
        z=z,
        z_dev=z_dev,
        head_mass=_sum(p * (p >= np.float32(0.1))),
        tail_mass=_sum(p * (p < np.float32(0.01))),
        bits_mass=by_id[:, :-1],
        end=np.isin(token, ends),
        end_mass=p[:, ends].sum(axis=1, dtype=np.float64),
        repeat_bin=repeat[0],
        repeat_mass=repeat[1],
        id_z=by_id[:, -1],
        id_dev=id_dev,
        id_x=id_x,
        **_with_q(p, q, log_p, token, envelope=envelope),
    )


def _largest(p: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    if p.shape[1] <= count:
        return p
    return np.partition(p, p.shape[1] - count, axis=1)[:, -count:]


def _moments(p: NDArray[np.float32], s: NDArray[np.float32], *, envelope: bool) -> tuple[F, F]:
    """E exp(θ s) and E|exp(θ s)/E exp(θ s) − 1| for each θ of ``THETAS``.

    One exponential serves all: the other powers of exp(s/10) are products.
    """
    w = np.exp(s * np.float32(0.1))
    inverse = np.float32(1) / w
    z, dev = [], []
    for theta in THETAS:
        base = w if theta > 0 else inverse
        power = base if abs(theta) == 0.1 else base * base * base  # noqa: PLR2004 - THETAS are ±.1, ±.3
        weighted = p * power
        total = _sum(weighted)
        z.append(total)
        dev.append(
            _sum(np.abs(weighted / total[:, None].astype(np.float32) - p))
            if envelope
            else np.zeros(len(p))
        )
    return np.stack(z, axis=1), np.stack(dev, axis=1)


def _with_q(
    p: NDArray[np.float32],
    q: NDArray[np.float32] | None,
    log_p: NDArray[np.float32],
    token: ID,
    *,
    envelope: bool,
) -> dict[str, Any]:
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
    # Where q is unknown p stands in: every ratio is 1, and the factors are neutral.
    q = np.where(has_q[:, None], q, p)
    q = _normalised(q)
    limit = np.float32(RATIO_LIMIT)
    ratio = np.log(np.maximum(q, _TINY))
    ratio -= log_p
    np.clip(ratio, -limit, limit, out=ratio)
    ratio_z, ratio_dev = _moments(p, ratio, envelope=envelope)
    beyond = np.stack(
        [np.ones(n), *(_sum(p * (ratio > np.float32(e))) for e in RATIO_EDGES), np.zeros(n)], axis=1
    )
    ratio_x = ratio[at, token].astype(np.float64)
    least = np.minimum(p, q)
    beta = _sum(least)
    best = q.argmax(axis=1)
    unsubtracted_dev, from_q_dev = np.zeros(n), np.zeros(n)
    if envelope:
        beta32 = beta[:, None].astype(np.float32)
        unsubtracted_dev = _sum(np.abs(least - beta32 * p))
        from_q_dev = _sum(np.abs(least + (1 - beta32) * q - p) * (p > 0))
    return {
        "has_q": has_q,
        "q_x": q[at, token].astype(np.float64),
        "ratio": ratio_x,
        "ratio_z": ratio_z,
        "ratio_dev": ratio_dev,
        "ratio_bin": np.searchsorted(np.array(RATIO_EDGES, dtype=np.float32), ratio[at, token]),
        "ratio_mass": -np.diff(beyond, axis=1),
        "beta": beta,
        "unsubtracted_dev": unsubtracted_dev,
        "from_q_dev": from_q_dev,
        "draft_arg_max": best == token,
        "draft_arg_max_p": p[at, best].astype(np.float64),
    }
