"""Exact verification of candidate trees, one request at a time.

Speculative sampling (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318): accept the
draft token d with probability min(1, p(d)/q(d)); at the first rejection draw from the residual
(p − q)+ and stop; when all were accepted draw a bonus from p. The output then follows p whatever q
is. Siblings drawn without replacement are judged one after the other (Jeon et al.,
arXiv:2402.14160): a rejection replaces p by its normalised residual, and takes the token out of q.
Greedy decoding is the limit where p is the point mass on the arg max.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.sampling import draw, point_mass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.tree import CandidateTree
    from gatekeeper_adapters.engines.reference.uniforms import Uniforms

    Target: TypeAlias = Callable[[int, Sequence[int]], Tensor]
    Numbers: TypeAlias = Callable[[int, int], Uniforms]

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
    """The accepted candidates from the top down, then one ``token`` of ``kind`` correction or bonus."""

    path: tuple[int, ...]
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
    target: Target, tree: CandidateTree, numbers: Numbers, verifier: Verifier = EXACT
) -> Verdict:
    """Judge ``tree`` against the target, from the top down.

    ``target(context, tokens)`` is the target's processed row float32 [V] after the accepted
    ``tokens``, asked for once at each context reached. ``numbers(depth, rank)`` are the uniforms of a
    position's child of that rank; rank 0 also draws the correction or bonus.
    """
    path: list[int] = []
    tokens: list[int] = []
    while True:
        context = path[-1] + 1 if path else 0
        children = tree.children[context]
        p, q = target(context, tokens), tree.row(context)
        sample = numbers(len(path), 0).sample
        if not children:
            return Verdict(tuple(path), draw(verifier.bonus(p, q), sample), BONUS)
        drawn = [tree.tokens[child] for child in children]
        accepts = [numbers(len(path), rank).accept for rank in range(len(drawn))]
        chosen, p = _judge(p, q, drawn, accepts, verifier)
        if chosen is None:
            return Verdict(tuple(path), draw(p, sample), CORRECTION)
        path.append(children[chosen])
        tokens.append(tree.tokens[children[chosen]])


def verify_greedy(best: Callable[[int, Sequence[int]], int], tree: CandidateTree) -> Verdict:
    """The greedy limit: follow the arg max ``best(context, tokens)`` while a candidate equals it."""
    path: list[int] = []
    tokens: list[int] = []
    while True:
        context = path[-1] + 1 if path else 0
        token, children = best(context, tokens), tree.children[context]
        chosen = next((child for child in children if tree.tokens[child] == token), None)
        if chosen is None:
            return Verdict(tuple(path), token, CORRECTION if children else BONUS)
        path.append(chosen)
        tokens.append(token)


def _judge(
    p: Tensor, q: Tensor | None, drawn: Sequence[int], accepts: Sequence[float], verifier: Verifier
) -> tuple[int | None, Tensor]:
    """The rank of the accepted sibling; or None, and the weights of the correction."""
    last = len(drawn) - 1
    for rank, (token, u) in enumerate(zip(drawn, accepts, strict=True)):
        proposed = point_mass(token, p) if q is None else q
        if u < verifier.accept(float(p[token]), float(proposed[token])):
            return rank, p
        weights = verifier.correction(p, proposed)
        total = weights.sum()
        if float(total) > 0.0:  # else p equals q up to rounding: nothing is left over
            p = weights if rank == last else weights / total
        if q is not None and rank < last:
            q = without(q, token)
    return None, p


def without(q: Tensor, token: int) -> Tensor:
    """``q`` [V] after ``token`` was drawn: normalised over the others (zero where none is left)."""
    rest = q.clone()
    rest[token] = 0.0
    return rest / rest.sum().clamp_(min=1e-30)
