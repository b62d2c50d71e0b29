"""Medusa's typical acceptance: approximate, and declared so.

A candidate d is accepted where the target finds it typical, p(d) > min(ε, δ·exp(−H(p))), with the
entropy H in nats (Cai et al., arXiv:2401.10774, section 2.3.1); of all branches accepted to their
ends the longest is taken, of equally long ones the likeliest. The output does not follow p: what it
gains in accepted length is paid in distribution, and the equivalence gate measures how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.sampling import draw
from gatekeeper_adapters.engines.reference.verify import BONUS, CORRECTION, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from gatekeeper_adapters.engines.reference.tree import CandidateTree
    from gatekeeper_adapters.engines.reference.verify import Numbers, Target

__all__ = ["TYPICAL", "Typical"]


@dataclass(frozen=True)
class Typical:
    """``epsilon`` bounds the threshold from above, ``delta`` scales it where the target is unsure.

    The defaults are those of the published code (``posterior_threshold``, ``posterior_alpha``).
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def threshold(self, p: Tensor) -> float:
        """min(ε, δ·exp(−H(p))) of a processed row ``p`` [V]."""
        entropy = float(torch.special.entr(p.double()).sum())
        return min(self.epsilon, self.delta * math.exp(-entropy))

    def verify(self, target: Target, tree: CandidateTree, numbers: Numbers) -> Verdict:
        """Accept the longest typical branch, then draw one token from p where it ends.

        Arguments as of ``verify.verify``; the target is asked once at each context reached.
        """
        path, p = self._best(target, tree, 0, ())[1:]
        context = path[-1] + 1 if path else 0
        kind = CORRECTION if tree.children[context] else BONUS
        return Verdict(path, draw(p, numbers(len(path), 0).sample), kind)

    def _best(
        self, target: Target, tree: CandidateTree, context: int, above: tuple[int, ...]
    ) -> tuple[tuple[int, float], tuple[int, ...], Tensor]:
        """Of the branches below ``context``: (length, log-likelihood), candidates, p at the end."""
        p = target(context, [tree.tokens[node] for node in above])
        best: tuple[tuple[int, float], tuple[int, ...], Tensor] = ((0, 0.0), (), p)
        edge = self.threshold(p)
        for node in tree.children[context]:
            chance = float(p[tree.tokens[node]])
            if chance <= edge:
                continue
            (length, likelihood), path, end = self._best(target, tree, node + 1, (*above, node))
            score = (length + 1, likelihood + math.log(chance))
            if score > best[0]:
                best = (score, (node, *path), end)
        return best


TYPICAL = Typical()
"""With the published defaults."""
