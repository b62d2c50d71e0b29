"""EAGLE drafts from the target's own features (Li et al., arXiv:2401.15077): a chain or a static tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.proposers.chain import HONEST, Drawing
from gatekeeper_adapters.engines.reference.proposers.features import Branches, FeatureProposer
from gatekeeper_adapters.engines.reference.proposers.siblings import drawn, ranked
from gatekeeper_adapters.engines.reference.proposers.static_tree import Shape, StaticTree
from gatekeeper_adapters.engines.reference.rules import adjusted, is_plain_greedy, possible
from gatekeeper_adapters.engines.reference.sampling import distribution
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree
from gatekeeper_adapters.engines.reference.uniforms import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.eagle_net import EagleNet
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

    Spread: TypeAlias = Callable[[Tensor], Tensor]

__all__ = ["EagleProposer"]


class EagleProposer(FeatureProposer):
    """One forward for each depth serves all sequences.

    Greedy requests get each context's best tokens. Sampled ones get siblings drawn from the draft's
    processed distribution q without replacement; the shape is fixed beforehand, so verification of
    the draws is exact. ``tree`` None is a chain as long as the window.
    """

    name = "eagle"

    def __init__(
        self, net: EagleNet, tree: StaticTree | None = None, *, drawing: Drawing = HONEST
    ) -> None:
        super().__init__(net)
        self._tree = tree
        self._drawing = drawing

    def most_candidates(self, gamma: int) -> int:
        """The window, or the candidates of the tree cut to it."""
        return gamma if self._tree is None else self._tree.most_candidates(gamma)

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Draft below every sequence whose states are known; nothing for the others."""
        begun, logits = self._begin(windows)
        gammas = {sequence.id: gamma for sequence, gamma in windows}
        growing = [
            _Growing(branches, self._shape(gammas[branches.sequence.id]), self._drawing)
            for branches in begun
        ]
        asked = [(each, [_ROOT]) for each in growing if each.reads(_ROOT.shape)]
        while asked:
            best = self._best(asked, logits)
            rows = iter(zip(logits, best, strict=True))
            following = []
            for each, contexts in asked:
                fresh = [
                    new
                    for context in contexts
                    for new in each.branch(context, *next(rows), self._spread)
                ]
                if fresh:
                    following.append((each, fresh))
            asked = following
            if asked:
                logits = self._extend([(each.branches, len(fresh)) for each, fresh in asked])
        found = {each.branches.sequence.id: each.candidates() for each in growing}
        return [found.get(sequence.id, NOTHING) for sequence, _ in windows]

    def _shape(self, gamma: int) -> Shape:
        if self._tree is None:
            return _chain(gamma)
        return self._tree.shape(min(gamma, self._tree.depth))

    def _best(
        self, asked: Sequence[tuple[_Growing, Sequence[_Context]]], logits: Tensor
    ) -> list[list[int]]:
        """Target ids of the best rows for all at once, where any request needs no more than them."""
        if not any(is_plain_greedy(each.branches.sequence) for each, _ in asked):
            return [[]] * len(logits)
        width = max(each.width(context) for each, contexts in asked for context in contexts)
        if width == 1:
            top = logits.argmax(dim=-1, keepdim=True)
        else:
            top = logits.topk(min(width, logits.shape[-1]), dim=-1).indices
        found: list[list[int]] = (top if self._net.ids is None else self._net.ids[top]).tolist()
        return found


@dataclass(frozen=True)
class _Context:
    """``shape`` is its number in the static tree, ``node`` and ``place`` its token's in the
    candidates and among those read; ``path`` the tokens down to it.
    """  # noqa: D205 - one sentence

    shape: int
    node: int
    place: int
    path: tuple[int, ...]


_ROOT = _Context(0, -1, -1, ())


@dataclass
class _Growing:
    """One sequence's candidates while they are drafted."""

    branches: Branches
    shape: Shape
    drawing: Drawing
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    q: dict[int, Tensor] = field(default_factory=dict)
    following: int | None = None

    def __post_init__(self) -> None:
        request = self.branches.sequence.request
        self._greedy = request.sampling.greedy
        depth = 1 + max(self.shape.depths, default=-1)
        self._numbers = Numbers(request.seed, self.branches.sequence.produced, depth)
        # at a leaf only evidence reads a row: a distribution, or a deterministic chain's guess
        chain = depth == len(self.shape)
        self._leaves = request.evidence and (chain or not self._greedy)

    def reads(self, context: int) -> bool:
        """Whether the draft's row at a context of the shape is needed."""
        return self._leaves or bool(self.shape.children[context])

    def width(self, context: _Context) -> int:
        """How many of the best tokens there may be asked for."""
        below = self.shape.children[context.shape]
        return self.shape.ranks[below[-1]] + 1 if below else 1

    def branch(
        self, context: _Context, row: Tensor, best: list[int], spread: Spread
    ) -> list[_Context]:
        """Add the tokens below a context; returns the contexts to read next."""
        below = self.shape.children[context.shape]
        if self._greedy:
            order = self._order(context, row, best, spread)
            if not below:
                self.following = next(iter(order), None)
            ranks = [self.shape.ranks[child] for child in below]
            tokens = [order[rank] for rank in ranks if rank < len(order)]
        else:
            tokens = self._draw(context, row, len(below), spread)
        fresh = []
        for child, token in zip(below, tokens, strict=False):
            node = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(context.node)
            if self.reads(child + 1):
                place = self.branches.add(token, context.place)
                fresh.append(_Context(child + 1, node, place, (*context.path, token)))
        return fresh

    def candidates(self) -> CandidateTree:
        """What was drafted."""
        return CandidateTree(tuple(self.tokens), tuple(self.parents), self.q, self.following)

    def _order(self, context: _Context, row: Tensor, best: list[int], spread: Spread) -> list[int]:
        sequence = self.branches.sequence
        if is_plain_greedy(sequence):
            return best
        return ranked(adjusted(spread(row), sequence, context.path), self.width(context))

    def _draw(self, context: _Context, row: Tensor, count: int, spread: Spread) -> list[int]:
        sequence = self.branches.sequence
        logits = adjusted(spread(row), sequence, context.path)
        if not possible(logits):  # nothing the draft knows is allowed here
            return []
        q = distribution(logits.unsqueeze(0), sequence.request.sampling)[0]
        self.q[context.node + 1] = self.drawing.claim(q)
        return drawn(q, count, self._numbers, len(context.path), self.drawing)


@lru_cache(maxsize=64)
def _chain(gamma: int) -> Shape:
    return Shape(tuple(range(-1, gamma - 1)), (0,) * gamma, tuple(range(gamma)))
