"""The strict bank: an anytime-valid test that emitted tokens follow the target's distribution.

Under H0 every token x_t given the past is a draw from p_t. Each member multiplies factors with
E_p f <= 1 given the past into a non-negative supermartingale starting at 1; a weighted mean of
members is one too, so P(sup E >= 1/alpha) <= alpha (Ville). The bank is the mean over groups of the
mean over a group's members, kept in the log domain.

Conditioning is on earlier tokens, p, q and the in-round index only: never on this token's draft,
accept flag or kind (see ``bonus_by_index`` for the one place where kind may help).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gatekeeper.core.claims import equation
from gatekeeper.core.stats import families
from gatekeeper.core.stats.evidence import BONUS
from gatekeeper.core.stats.learned import Learned
from gatekeeper.core.stats.rows import recent, reduce_rows
from gatekeeper.errors import EvidenceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatekeeper.core.stats.evidence import RequestEvidence
    from gatekeeper.core.stats.families import Factors
    from gatekeeper.core.stats.rows import Rows

    F = NDArray[np.float64]
    ID = NDArray[np.int64]

__all__ = [
    "GROUPS",
    "MEMBERS",
    "Bank",
    "Increments",
    "bonus_by_index",
    "cumulate",
    "log10_e",
    "log_e",
    "member_groups",
    "running_log_e",
    "to_table",
    "tokens",
]

_BLOCK = 32
_ID_BITS = 3
_TINY_DELTA = 1e-5
"""Below it E_p|f − 1| is not computed, a third of a row's cost: its bound 2 takes 2e-5 nats a token."""

GROUPS = (
    "tilts",
    "mixtures",
    "bonus mixtures",
    "named faults",
    "PIT",
    "serial",
    "learned",
    "duplicate",
    "support",
)
"""Groups of alternatives, of equal weight."""


@dataclass(frozen=True)
class Increments:
    """What one request adds to the bank.

    ``log_f`` [n, M] log factors of ``MEMBERS``, ``log_f_envelope`` the same after the numeric
    envelope; ``rows`` the reduced rows, block after block.
    """

    log_f: F
    log_f_envelope: F
    rows: tuple[Rows, ...]


def bonus_by_index(
    evidence: RequestEvidence, gamma: int | None, *, kind_is_past: bool
) -> NDArray[np.bool_]:
    """Mark the rows that lie at the bonus position, by what is known before the token is drawn.

    Where the window length never depends on drawn draft tokens (``kind_is_past``: fixed chains,
    look-ups), "kind = bonus" says only that all k drafts of a window of k were accepted. Otherwise
    the index has to say it: k = ``gamma``, or where gamma is unknown the largest k so far in the
    request. Without k no position is known to be one.
    """
    if kind_is_past and evidence.kind is not None:
        bonus: NDArray[np.bool_] = evidence.kind == BONUS
        return bonus
    if evidence.k is None:
        return np.zeros(evidence.rows, dtype=bool)
    last = np.maximum.accumulate(evidence.k) if gamma is None else gamma
    at_end: NDArray[np.bool_] = (evidence.k == last) & (evidence.k > 0)
    return at_end


class Bank:
    """Streams requests through the bank; requests must come in an order fixed beforehand.

    Args:
        vocabulary: V.
        seed: of the auxiliary uniforms of the PIT and serial families.
        delta: numeric envelope: H0 is widened to every p' with |log p'/p| <= delta by dividing
            each factor by 1 + (e^delta − 1) E_p|f − 1|.
        end_tokens: for the end-token bins; may be empty.
        support_rate: share of tokens that numerics alone may put outside the support of p.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        seed: int,
        delta: float = 0.0,
        end_tokens: tuple[int, ...] = (),
        support_rate: float = families.SUPPORT_RATE,
    ) -> None:
        self._learned = Learned(vocabulary)
        self._uniforms = np.random.default_rng(seed)
        self._delta = delta
        self._end_tokens = end_tokens
        self._support_rate = support_rate
        self._earlier: dict[object, list[ID]] = {}
        ids = np.arange(vocabulary)
        self._bits = ((ids[:, None] >> np.arange(_ID_BITS)) & 1).astype(np.float32)

    def add(
        self, evidence: RequestEvidence, bonus: NDArray[np.bool_], *, prompt: object = None
    ) -> Increments:
        """Take one finished request; ``prompt`` is the key under which replicates are compared."""
        n = evidence.rows
        if n == 0:
            empty = np.zeros((0, len(MEMBERS)))
            return Increments(empty, empty, ())
        k = np.zeros(n, dtype=np.int64) if evidence.k is None else evidence.k
        token = evidence.token.astype(np.int64)
        key = evidence.prompt if prompt is None else prompt
        share = _share(token, self._earlier.setdefault(key, []))
        repeat = recent(token, k, evidence.p)
        previous = np.full(n, np.nan)
        previous[1:] = evidence.p[np.arange(n - 1), token[1:]]
        v = self._uniforms.random(n)
        lags = _Lags()
        blocks = []
        reduced = []
        for start in range(0, n, _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = reduce_rows(
                token[part],
                evidence.p[part],
                None if evidence.q is None else evidence.q[part],
                k[part],
                bonus[part],
                repeat=(repeat[0][part], repeat[1][part]),
                id_weights=self._learned.id_weights,
                bits=self._bits,
                end_tokens=self._end_tokens,
                envelope=self._delta > _TINY_DELTA,
            )
            blocks.append(
                families.join(
                    families.tilts(rows),
                    families.mixtures(rows, previous[part], bonus_only=False),
                    families.mixtures(rows, previous[part], bonus_only=True),
                    families.named(rows),
                    families.pit(rows, v[part]),
                    lags.factors(rows, v[part]),
                    self._learned.factors(rows),
                    families.duplicate(rows, share[part]),
                    families.support(rows, self._support_rate),
                )
            )
            self._learned.update(rows, evidence.p[part])
            reduced.append(rows)
        self._earlier[key].append(token)
        log_f = np.log(np.concatenate([block.f for block in blocks]))
        widened = log_f
        if self._delta > _TINY_DELTA:
            dev = np.concatenate([block.dev for block in blocks])
            widened = log_f - np.log1p(np.expm1(self._delta) * dev)
        elif self._delta > 0:
            widened = log_f - np.log1p(2 * np.expm1(self._delta))
        return Increments(log_f, widened, tuple(reduced))


class _Lags:
    """The two lags of the serial family: the row before, and the same k one round earlier."""

    def __init__(self) -> None:
        self._last = np.nan
        self._by_k: dict[int, float] = {}

    def factors(self, rows: Rows, v: F) -> Factors:
        u = np.clip(rows.below + v * rows.p_x, 0.0, 1.0)
        before = np.concatenate([[self._last], u[:-1]])
        same_k = np.full(len(u), np.nan)
        for i, k in enumerate(rows.k.tolist()):
            same_k[i] = self._by_k.get(k, np.nan)
            self._by_k[k] = float(u[i])
        self._last = float(u[-1])
        return families.serial(u, {"lag 1": before, "same k": same_k})


def _share(token: ID, earlier: list[ID]) -> F:
    """Part of the earlier replicates with the same prefix that emitted the same token here."""
    n = len(token)
    followers, matches = np.zeros(n), np.zeros(n)
    for other in earlier:
        m = min(n, len(other))
        equal = other[:m] == token[:m]
        prefix = int(m if equal.all() else np.argmin(equal))
        matches[:prefix] += 1
        followers[: min(prefix + 1, m)] += 1
    return np.where(followers > 0, matches / np.maximum(followers, 1), np.nan)


def _members() -> tuple[tuple[str, str], ...]:
    """(group, member) in the order of the columns, read off the families on an empty block."""
    none = np.zeros(0)
    rows = reduce_rows(
        np.zeros(1, dtype=np.int64),
        np.ones((1, 2), dtype=np.float32),
        None,
        np.zeros(1, dtype=np.int64),
        np.zeros(1, dtype=bool),
        repeat=(np.zeros(1, dtype=np.int64), np.ones((1, 3))),
        id_weights=np.ones(2, dtype=np.float32),
        bits=np.ones((2, 1), dtype=np.float32),
    )
    one = np.full(1, np.nan)
    parts = (
        families.tilts(rows),
        families.mixtures(rows, one, bonus_only=False),
        families.mixtures(rows, one, bonus_only=True),
        families.named(rows),
        families.pit(rows, one),
        families.serial(none, {"lag 1": none, "same k": none}),
        Learned(2).factors(rows),
        families.duplicate(rows, one),
        families.support(rows, families.SUPPORT_RATE),
    )
    return tuple(
        (group, name) for group, part in zip(GROUPS, parts, strict=True) for name in part.names
    )


_NAMED = _members()
MEMBERS = tuple(name for _, name in _NAMED)
"""Every member, in the order of the columns of ``Increments``."""


def member_groups() -> dict[str, str]:
    """Group of every member."""
    return {name: group for group, name in _NAMED}


def _log_weights() -> F:
    sizes = {group: sum(g == group for g, _ in _NAMED) for group in GROUPS}
    return np.array([-np.log(len(GROUPS) * sizes[group]) for group, _ in _NAMED])


_LOG_WEIGHTS = _log_weights()


def log_e(member_log: F) -> F:
    """Natural log of the bank's E for cumulated log factors [..., M] of ``MEMBERS``."""
    weighted = member_log + _LOG_WEIGHTS
    top = weighted.max(axis=-1, keepdims=True)
    value: F = top[..., 0] + np.log(np.exp(weighted - top).sum(axis=-1))
    return value


@equation("equivalence.log10_e", table=True)
def log10_e(table: pd.DataFrame, *, envelope: bool) -> float:
    """Largest log10 E over the requests so far, from the table of per-request log factors.

    Raises:
        EvidenceError: a request lacks a member, or there is none.
    """
    cumulated = cumulate(table, envelope=envelope)
    return float(log_e(cumulated.to_numpy()).max() / np.log(10))


@equation("equivalence.tokens", table=True)
def tokens(table: pd.DataFrame) -> int:
    """Sampled tokens of the ``requests`` table."""
    return int(table["tokens"].sum())


def cumulate(table: pd.DataFrame, *, envelope: bool) -> pd.DataFrame:
    """Log factors of each member after each request [requests, MEMBERS], in request order.

    Raises:
        EvidenceError: a request lacks a member, or there is none.
    """
    wide = table.pivot_table(
        index="request",
        columns="member",
        values="log_e_envelope" if envelope else "log_e",
        aggfunc="sum",
    ).reindex(columns=list(MEMBERS))
    if wide.empty or bool(wide.isna().to_numpy().any()):
        raise EvidenceError(
            "does not hold every member for every request",
            field="strict",
            value=f"{len(table)} rows",
            remedy="restore the table the run wrote",
        )
    return wide.sort_index().cumsum()


def to_table(request: int, increments: Increments) -> pd.DataFrame:
    """One request's rows of the ``strict`` table: request, member, log_e, log_e_envelope."""
    return pd.DataFrame(
        {
            "request": np.full(len(MEMBERS), request, dtype=np.int64),
            "member": list(MEMBERS),
            "log_e": increments.log_f.sum(axis=0),
            "log_e_envelope": increments.log_f_envelope.sum(axis=0),
        }
    )


def running_log_e(log_f: F, start: F | None = None) -> F:
    """Natural log of E after each row of ``log_f`` [n, M], ``start`` [M] being the logs so far."""
    cumulated = np.cumsum(log_f, axis=0)
    return log_e(cumulated if start is None else cumulated + start)
