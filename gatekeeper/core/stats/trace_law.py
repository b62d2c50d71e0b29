"""The trace law of chains, a diagnostic: what drafts, accept flags and corrections say.

d ~ q; accept | d ~ Bernoulli(min(1, p(d)/q(d))); x | reject ~ (p − q)+ / sum. It is 5 to 20 times
faster than the bank on a broken acceptance rule, but it also flags exact alternatives and harmless
stale draft caches, and never sees the bonus position: so it explains a verdict and never makes one.
Probabilities get an envelope of a factor e^0.3 either way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.core.stats.evidence import ACCEPTED, CORRECTION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatekeeper.core.stats.evidence import RequestEvidence

__all__ = ["ENVELOPE", "TraceLaw"]

ENVELOPE = 0.3
_BETS = (0.1, 0.3, 0.8)


def _bets(excess: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of 1 + λ excess for each λ; ``excess`` has expectation <= 0 under the trace law."""
    logs: NDArray[np.float64] = np.log1p(np.array(_BETS)[:, None] * excess).sum(axis=1)
    return logs


@dataclass
class TraceLaw:
    """Adds up the trace law over requests. Sums of logs by bet size, counts of rows."""

    drafts: int = 0
    corrections: int = 0
    impossible: int = 0
    logs: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def add(self, evidence: RequestEvidence) -> None:
        """Take one request; rows without q, kind or draft say nothing."""
        if evidence.q is None or evidence.kind is None or evidence.draft is None:
            return
        use = np.flatnonzero(
            (evidence.draft >= 0)
            & np.isin(evidence.kind, (ACCEPTED, CORRECTION))
            & ~np.isnan(evidence.q[:, 0])
        )
        if not len(use):
            return
        p, q = evidence.p[use].astype(np.float64), evidence.q[use].astype(np.float64)
        draft, row = evidence.draft[use], np.arange(len(use))
        accepted = (evidence.kind[use] == ACCEPTED).astype(np.float64)
        best = q.argmax(axis=1)
        surprise = (draft == best) - q[row, best]
        # A draft that q rules out cannot have been drawn from it: count it as certain to be refused.
        q_d = q[row, draft]
        chance = np.where(q_d > 0, np.minimum(1.0, p[row, draft] / np.where(q_d > 0, q_d, 1)), 0.0)
        most = np.minimum(1.0, chance * np.exp(ENVELOPE))
        least = chance * np.exp(-ENVELOPE)
        self._bet("draft above q", surprise)
        self._bet("draft below q", -surprise)
        self._bet("accepts too often", accepted - most)
        self._bet("accepts too rarely", least - accepted)
        wrong = np.flatnonzero(evidence.kind[use] == CORRECTION)
        token = evidence.token[use]
        q_x, p_x = q[wrong, token[wrong]], p[wrong, token[wrong]]
        self.drafts += len(use)
        self.corrections += len(wrong)
        self.impossible += int((q_x > p_x * np.exp(ENVELOPE)).sum())

    def _bet(self, name: str, excess: NDArray[np.float64]) -> None:
        self.logs[name] = self.logs.get(name, np.zeros(len(_BETS))) + _bets(excess)

    def summary(self) -> dict[str, Any]:
        """JSON-able diagnosis.

        ``log10_e`` by law, evidence against it; ``impossible_corrections`` counts corrections that
        q made e^0.3 times more probable than p, which no residual (p − q)+ contains.
        """
        if not self.drafts:
            return {"available": False, "reason": "needs q, kind and draft of a chain"}
        log10_e = {
            name: float((np.logaddexp.reduce(logs) - np.log(len(logs))) / np.log(10))
            for name, logs in self.logs.items()
        }
        return {
            "available": True,
            "diagnostic_only": True,
            "drafts": self.drafts,
            "corrections": self.corrections,
            "impossible_corrections": self.impossible,
            "log10_e": log10_e,
        }
