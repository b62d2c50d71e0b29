"""Exact verification of a draft window, one request at a time.

Speculative sampling (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318): accept the
draft token d with probability min(1, p(d)/q(d)); at the first rejection draw from the residual
(p − q)+ and stop; when all were accepted draw a bonus from p. The output then follows p whatever q
is. Greedy decoding is the limit where p is the point mass on the arg max.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.sampling import draw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.uniforms import Uniforms

__all__ = [
    "ACCEPTED",
    "BONUS",
    "CORRECTION",
    "EXACT",
    "Verdict",
    "Verifier",
    "verify",
    "verify_greedy",
]

ACCEPTED, CORRECTION, BONUS = 0, 1, 2
"""Kinds of emitted tokens, as in ``Emission.kind``."""


@dataclass(frozen=True)
class Verdict:
    """``accepted`` draft tokens, then one ``token`` of ``kind`` correction or bonus."""

    accepted: int
    token: int
    kind: int


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Weights of the correction, (p − q)+; not normalised."""
    return (p - q).clamp_(min=0.0)


@dataclass(frozen=True)
class Verifier:
    """The three choices of the algorithm. Anything but the defaults is a fault planted by a test.

    ``accept(p(d), q(d))`` is a probability; ``correction(p, q)`` and ``bonus(p, q)`` are weights
    [V], where the bonus's q is None unless the proposer computed one there.
    """

    accept: Callable[[float, float], float] = lambda p, q: min(1.0, p / q)
    correction: Callable[[Tensor, Tensor], Tensor] = residual
    bonus: Callable[[Tensor, Tensor | None], Tensor] = lambda p, _: p


EXACT = Verifier()
"""The algorithm as published."""


def verify(
    p: Tensor,
    drafts: Sequence[int],
    q: Tensor,
    numbers: Sequence[Uniforms],
    verifier: Verifier = EXACT,
) -> Verdict:
    """Judge ``drafts`` [g] against the target.

    ``p`` float32 [g + 1, V] the target's processed rows, ``q`` [>= g, V] the proposal's (one-hot for
    deterministic candidates; a row g, where present, belongs to the bonus position), ``numbers`` one
    per row of ``p``.
    """
    count = len(drafts)
    if count:
        index = list(range(count))
        target, proposed = p[index, drafts].tolist(), q[index, drafts].tolist()
        for k in index:
            if numbers[k].accept < verifier.accept(target[k], proposed[k]):
                continue
            weights = verifier.correction(p[k], q[k])
            if not float(weights.sum()) > 0.0:  # p equals q up to rounding: nothing is left over
                weights = p[k]
            return Verdict(k, draw(weights, numbers[k].sample), CORRECTION)
    weights = verifier.bonus(p[count], q[count] if q.shape[0] > count else None)
    return Verdict(count, draw(weights, numbers[count].sample), BONUS)


def verify_greedy(best: Sequence[int], drafts: Sequence[int]) -> Verdict:
    """The greedy limit: accept while the draft equals the arg max ``best`` [g + 1]."""
    for k, token in enumerate(drafts):
        if token != best[k]:
            return Verdict(k, best[k], CORRECTION)
    return Verdict(len(drafts), best[len(drafts)], BONUS)
