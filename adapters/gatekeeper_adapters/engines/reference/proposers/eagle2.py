"""EAGLE-2 (Li et al., arXiv:2406.16858): a tree that grows where the draft is confident.

The draft's probability of a token tells well how likely the target accepts it, and so does the
product along a path. Each depth expands the candidates of largest product; at the end the best of
all that were seen are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.proposers.features import Branches, FeatureProposer
from gatekeeper_adapters.engines.reference.rules import adjusted, is_plain, is_plain_greedy
from gatekeeper_adapters.engines.reference.sampling import NEVER, distribution
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.eagle_net import EagleNet
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

    Likely: TypeAlias = list[tuple[int, float]]
    """Tokens with their log-probabilities, best first."""

__all__ = ["Eagle2Proposer"]


class Eagle2Proposer(FeatureProposer):
    """``top_k`` tokens below each of the ``top_k`` best candidates of a depth, down to ``depth``.

    Of all candidates the best ``nodes`` are proposed. Shape and order depend on the draft's
    confidence, so candidates are deterministic, point masses for verification; confidence is the
    product of the probabilities that the request's own rules give.
    """

    name = "eagle2"

    def __init__(self, net: EagleNet, *, depth: int, top_k: int, nodes: int) -> None:
        super().__init__(net)
        self._depth = depth
        self._top_k = top_k
        self._nodes = nodes

    def most_candidates(self, gamma: int) -> int:
        """``nodes``, or fewer where a short window never sees as many."""
        depth = min(gamma, self._depth)
        return min(self._nodes, self._top_k + (depth - 1) * self._top_k**2) if depth else 0

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Draft below every sequence whose states are known; nothing for the others."""
        begun, logits = self._begin(windows)
        gammas = {sequence.id: gamma for sequence, gamma in windows}
        groves = [
            _Grove(branches, min(gammas[branches.sequence.id], self._depth)) for branches in begun
        ]
        asked = [(grove, [_ROOT]) for grove in groves]
        while asked:
            likely = iter(self._likely(asked, logits))
            following = []
            for grove, contexts in asked:
                grove.branch([(context, next(likely)) for context in contexts])
                beam = grove.beam(min(self._top_k, self._room(grove.branches)), self._nodes)
                if beam:
                    following.append((grove, beam))
            asked = following
            if asked:
                logits = self._extend([(grove.branches, len(beam)) for grove, beam in asked])
        found = {grove.branches.sequence.id: grove.best(self._nodes) for grove in groves}
        return [found.get(sequence.id, NOTHING) for sequence, _ in windows]

    def _likely(
        self, asked: Sequence[tuple[_Grove, Sequence[_Context]]], logits: Tensor
    ) -> list[Likely]:
        """The best tokens at each context, by the rules of its request."""
        places = [(grove.branches.sequence, each.path) for grove, some in asked for each in some]
        if all(is_plain_greedy(sequence) for sequence, _ in places):
            return self._top(logits.log_softmax(dim=-1), self._net.ids)
        return [
            self._ruled(row, sequence, path)
            for row, (sequence, path) in zip(logits, places, strict=True)
        ]

    def _ruled(self, row: Tensor, sequence: Seq, path: Sequence[int]) -> Likely:
        ids = self._net.ids
        if not is_plain(sequence):
            row, ids = adjusted(self._spread(row), sequence, path), None
        settings = sequence.request.sampling
        row = row.unsqueeze(0)
        log_p = row.log_softmax(dim=-1) if settings.greedy else distribution(row, settings).log()
        return self._top(log_p, ids)[0]

    def _top(self, log_p: Tensor, ids: Tensor | None) -> list[Likely]:
        """Of each row [V] or [head rows]; only tokens that are possible at all."""
        values, tokens = log_p.topk(min(self._top_k, log_p.shape[-1]), dim=-1)
        named = tokens if ids is None else ids[tokens]
        # not above 0: a probability may be rounded to more than 1; NaN where nothing is possible
        return [
            [(token, min(value, 0.0)) for token, value in zip(*pair, strict=True) if value > NEVER]
            for pair in zip(named.tolist(), values.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class _Context:
    """``node`` and ``place`` are its token's number among all candidates and among those read."""

    node: int
    place: int
    path: tuple[int, ...]


_ROOT = _Context(-1, -1, ())


@dataclass
class _Grove:
    """All candidates seen of one sequence, ``depth`` at most; ``values`` are log-confidences.

    ``latest`` are those of the depth just drafted, with the context that each hangs below.
    """

    branches: Branches
    depth: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    latest: dict[int, _Context] = field(default_factory=dict)

    def branch(self, likely: Iterable[tuple[_Context, Likely]]) -> None:
        """Add the tokens below the contexts of one depth."""
        self.latest = {}
        for context, tokens in likely:
            if len(context.path) == self.depth:
                continue
            above = 0.0 if context.node < 0 else self.values[context.node]
            for token, value in tokens:
                self.latest[len(self.tokens)] = context
                self.tokens.append(token)
                self.parents.append(context.node)
                self.values.append(above + value)

    def beam(self, count: int, nodes: int) -> list[_Context]:
        """Contexts to read next: the best of this depth, if anything below them can be kept.

        A child is never worth more than its parent. So a candidate that is not among the best
        ``nodes`` so far has no child that would be, and is not read: the result is the same.
        """
        kept = set(self._order()[:nodes])
        best = [node for node in self._order() if node in self.latest][:count]
        contexts = []
        for node in best:
            above = self.latest[node]
            path = (*above.path, self.tokens[node])
            if node in kept and len(path) < self.depth:
                place = self.branches.add(self.tokens[node], above.place)
                contexts.append(_Context(node, place, path))
        return contexts

    def best(self, nodes: int) -> CandidateTree:
        """The best candidates in order of confidence, so parents stand before their children."""
        kept = self._order()[:nodes]
        place = {-1: -1} | {node: index for index, node in enumerate(kept)}
        return CandidateTree(
            tuple(self.tokens[node] for node in kept),
            tuple(place[self.parents[node]] for node in kept),
        )

    def _order(self) -> list[int]:
        return sorted(range(len(self.tokens)), key=lambda node: -self.values[node])
