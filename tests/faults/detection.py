"""How many tokens the strict bank needs, on evidence alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from faults.markov import END, MarkovLM

from gatekeeper.core.stats.eprocess import Bank, bonus_by_index, running_log_e
from gatekeeper.core.stats.families import EXACT_SUPPORT_RATE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gatekeeper.core.stats.evidence import RequestEvidence

ALPHA = 1e-3


def side_by_side(evidence: list[RequestEvidence]) -> list[RequestEvidence]:
    """Replicates of a prompt one after the other, as the gate runs them."""
    return sorted(evidence, key=lambda e: (e.prompt, e.replicate))


def tokens_to_alarm(
    evidence: Iterable[RequestEvidence], lm: MarkovLM, seed: int, *, replicates_only: bool = False
) -> float:
    """Tokens until E >= 1/alpha, inf where it never is.

    ``replicates_only`` leaves the tokens of first replicates uncounted: they have nothing to repeat.
    """
    bank = Bank(
        lm.vocabulary,
        seed=seed,
        end_tokens=(END,) if lm.ends else (),
        support_rate=EXACT_SUPPORT_RATE,
    )
    total, spent = None, 0
    for request in evidence:
        log_f = bank.add(request, bonus_by_index(request, None, kind_is_past=False)).log_f
        crossed = np.flatnonzero(running_log_e(log_f, total) >= np.log(1 / ALPHA))
        if len(crossed):
            return spent + int(crossed[0]) + 1
        total = log_f.sum(axis=0) if total is None else total + log_f.sum(axis=0)
        spent += request.rows if request.replicate or not replicates_only else 0
    return np.inf
