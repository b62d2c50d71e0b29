"""Drafting a chain of tokens, batched over sequences, whatever computes the logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.rules import adjusted, is_plain_greedy, possible
from gatekeeper_adapters.engines.reference.sampling import distribution, draw
from gatekeeper_adapters.engines.reference.tree import CandidateTree
from gatekeeper_adapters.engines.reference.uniforms import uniforms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["HONEST", "Chain", "Drawing", "draft_chains"]


@dataclass(frozen=True)
class Drawing:
    """How a draft token is drawn and what is claimed of it; tests plant faults here.

    ``pick(q, u)`` draws a token from the processed draft row ``q`` [V]; ``claim(q)`` is the row told
    to verification.
    """

    pick: Callable[[Tensor, float], int] = draw
    claim: Callable[[Tensor], Tensor] = lambda q: q


HONEST = Drawing()
"""Draws from q and says so."""


@dataclass
class Chain:
    """One sequence's window being drafted; ``total`` includes the bonus position for evidence."""

    sequence: Seq
    gamma: int
    total: int
    numbers: list[float]
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    stuck: bool = False

    @classmethod
    def begin(cls, sequence: Seq, gamma: int) -> Chain:
        """An empty chain of at most ``gamma`` tokens."""
        request = sequence.request
        total = gamma + request.evidence
        numbers = [u.draft for u in uniforms(request.seed, sequence.produced, total)]
        return cls(sequence, gamma, total, numbers)

    @property
    def done(self) -> bool:
        """Whether no further token is wanted, or none is possible."""
        return self.stuck or len(self.tokens) >= self.total

    @property
    def end(self) -> int:
        """Position after the last token so far, drafts included."""
        return len(self.sequence.tokens) + len(self.tokens)

    def since(self, start: int) -> list[int]:
        """The text from position ``start`` on, drafts included."""
        known = self.sequence.tokens
        return [*known[start:], *self.tokens[max(0, start - len(known)) :]]

    def proposal(self) -> CandidateTree:
        """What was drafted, with dense rows where it was drawn."""
        extra = self.tokens[self.gamma :]
        following = extra[0] if extra and not self.rows else None
        return CandidateTree.chain(self.tokens[: self.gamma], self.rows, following)


def draft_chains(
    windows: Sequence[tuple[Seq, int]],
    forward: Callable[[Sequence[Chain]], tuple[Tensor, list[int]]],
    *,
    spread: Callable[[Tensor], Tensor],
    drawing: Drawing,
) -> list[CandidateTree]:
    """Draft up to gamma tokens each; every forward serves all sequences still drafting.

    ``forward`` gives a row of draft logits for the next token of each chain, and that row's arg max
    as the target's id; ``spread`` makes a row one [V] over the target's vocabulary.
    """
    chains = [Chain.begin(sequence, gamma) for sequence, gamma in windows]
    live = chains
    while live:
        logits, best = forward(live)
        for chain, row, top in zip(live, logits, best, strict=True):
            _choose(chain, row, top, spread, drawing)
        live = [chain for chain in live if not chain.done]
    return [chain.proposal() for chain in chains]


def _choose(
    chain: Chain, row: Tensor, top: int, spread: Callable[[Tensor], Tensor], drawing: Drawing
) -> None:
    """Append one token by the processors that the target's own rows go through."""
    sequence = chain.sequence
    if is_plain_greedy(sequence):
        chain.tokens.append(top)
        return
    logits = adjusted(spread(row), sequence, chain.tokens)
    if not possible(logits):  # nothing the draft knows is allowed here
        chain.stuck = True
    elif sequence.request.sampling.greedy:
        chain.tokens.append(int(logits.argmax()))
    else:
        q = distribution(logits.unsqueeze(0), sequence.request.sampling)[0]
        chain.tokens.append(drawing.pick(q, chain.numbers[len(chain.tokens)]))
        chain.rows.append(drawing.claim(q))
