"""A fault of declared size: a share of all tokens comes from the draft, unchecked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from faults.markov import inverse
from faults.sampler import Sampler

if TYPE_CHECKING:
    A = np.ndarray


def leaking(share: float) -> type[Sampler]:
    """x ~ (1 − share) p + share q at every position, the bonus included."""

    class Leaking(Sampler):
        def judge(self, at: A, p: A, q: A, draft: A, k: int) -> tuple[A, A]:
            accept, token = super().judge(at, p, q, draft, k)
            leaks = self.rng.random(len(at)) < share
            return accept | leaks, np.where(leaks, draft, token)

        def emit_bonus(self, at: A, k: int) -> A:
            token = super().emit_bonus(at, k)
            leaks = self.rng.random(len(at)) < share
            q = self.lm.q[self.draft_view(at)]
            return np.where(leaks, inverse(q, self.rng.random(len(at))), token)

    return Leaking
