"""Learned alternatives: observed over expected frequencies of bins, from earlier rows only.

Factor ½ + ½ r_b / Σ_b m_b r_b with r_b = (N_b + c)/(M_b + c): N counts what came, M sums what p
expected, m is this row's probability of each bin. Weights are frozen for a block of rows and
updated after it, so every factor is fixed by the past and has expectation 1 under p.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.core.stats.families import Factors
from gatekeeper.core.stats.rows import RANK_EDGES, RATIO_EDGES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatekeeper.core.stats.rows import Rows

    F = NDArray[np.float64]
    ID = NDArray[np.int64]

__all__ = ["Learned"]

_MAX_K = 16
_C = 4.0
_C_ID = 2.0
_TABLES = {
    "rank by k": (_MAX_K, len(RANK_EDGES)),
    "rank by bonus": (2, len(RANK_EDGES)),
    "log q/p by k": (_MAX_K, len(RATIO_EDGES) + 1),
    "log q/p by bonus": (2, len(RATIO_EDGES) + 1),
    "repetition": (2, 3),
    "end token by bonus": (2, 2),
}


class Learned:
    """Counts of the learned families for one vocabulary; ``factors`` first, then ``update``."""

    NAMES = (*(f"learned {name}" for name in _TABLES), "learned token id")

    def __init__(self, vocabulary: int) -> None:
        self._seen = {name: np.full(shape, _C) for name, shape in _TABLES.items()}
        self._expected = {name: np.full(shape, _C) for name, shape in _TABLES.items()}
        self._id_seen = np.full(vocabulary, _C_ID)
        self._id_expected = np.full(vocabulary, _C_ID)

    @property
    def id_weights(self) -> NDArray[np.float32]:
        """Weight r of each token id, for the pass over the vocabulary."""
        weights: NDArray[np.float32] = (self._id_seen / self._id_expected).astype(np.float32)
        return weights

    def factors(self, rows: Rows) -> Factors:
        """Return the factors of a block of rows from the counts of earlier blocks."""
        n = len(rows)
        inside = rows.p_x > 0
        f, dev = [], []
        for name, (stratum, which, mass, known) in _cells(rows).items():
            r = (self._seen[name] / self._expected[name])[stratum]
            z = (mass * r).sum(axis=1) / mass.sum(axis=1)
            g = r[np.arange(n), which] / z
            use = known & inside
            f.append(np.where(use, 0.5 + 0.5 * g, 1.0))
            spread = (mass * np.abs(r / z[:, None] - 1)).sum(axis=1)
            dev.append(np.where(use, 0.5 * spread, 0.0))
        f.append(np.where(inside, 0.5 + 0.5 * rows.id_x / rows.id_z, 1.0))
        dev.append(0.5 * rows.id_dev)
        return Factors(self.NAMES, np.stack(f, axis=1), np.stack(dev, axis=1))

    def update(self, rows: Rows, p: NDArray[np.float32]) -> None:
        """Add a block of rows to the counts; ``p`` [n, V] are its distributions."""
        for name, (stratum, which, mass, use) in _cells(rows).items():
            np.add.at(self._seen[name], (stratum[use], which[use]), 1.0)
            np.add.at(self._expected[name], stratum[use], mass[use])
        np.add.at(self._id_seen, rows.token, 1.0)
        self._id_expected += np.ones(len(p), dtype=np.float32) @ p


def _cells(rows: Rows) -> dict[str, tuple[ID, ID, F, NDArray[np.bool_]]]:
    """Stratum, bin of the token, bin masses and applicability, by table."""
    k = np.clip(rows.k, 0, _MAX_K - 1)
    bonus = rows.bonus.astype(np.int64)
    always = np.ones(len(rows), dtype=bool)
    ends = np.stack([1 - rows.end_mass, rows.end_mass], axis=1)
    return {
        "rank by k": (k, rows.rank_bin, rows.rank_mass, always),
        "rank by bonus": (bonus, rows.rank_bin, rows.rank_mass, always),
        "log q/p by k": (k, rows.ratio_bin, rows.ratio_mass, rows.has_q),
        "log q/p by bonus": (bonus, rows.ratio_bin, rows.ratio_mass, rows.has_q),
        "repetition": (bonus, rows.repeat_bin, rows.repeat_mass, always),
        "end token by bonus": (bonus, rows.end.astype(np.int64), ends, always),
    }
