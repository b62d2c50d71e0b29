"""Heads on the target's last hidden state propose a static tree (Cai et al., arXiv:2401.10774).

Head k looks k + 2 tokens beyond the state's position, whatever lies between: with the state of the
last cached position p, and token p + 1 already committed, head 0 speaks of the first candidate. The
candidates are each head's best tokens, deterministic, so verification treats them as point masses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.drafter import spread
from gatekeeper_adapters.engines.reference.proposers.base import Proposer
from gatekeeper_adapters.engines.reference.proposers.siblings import ranked
from gatekeeper_adapters.engines.reference.rules import adjusted, is_plain
from gatekeeper_adapters.engines.reference.sampling import point_mass
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.medusa_heads import MedusaHeads
    from gatekeeper_adapters.engines.reference.proposers.static_tree import Shape, StaticTree
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["MedusaProposer"]


class MedusaProposer(Proposer):
    """One product of all heads for all sequences, then the tree's ranks.

    Keeps one state a sequence. The round that caches a prompt's end proposes nothing: the state of
    its last token does not exist yet.
    """

    name = "medusa"
    reads_states = True

    def __init__(self, heads: MedusaHeads, tree: StaticTree, *, vocab_size: int) -> None:
        self._heads = heads
        self._tree = tree
        self._vocab = vocab_size
        self._states: dict[str, tuple[int, Tensor]] = {}

    def most_candidates(self, gamma: int) -> int:
        """Candidates of the tree cut to ``gamma``."""
        return self._tree.most_candidates(gamma)

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """The best tokens of each head, in the shape of the tree; nothing where no state is known."""
        ready = [(sequence, gamma) for sequence, gamma in windows if self._knows(sequence)]
        if not ready:
            return [NOTHING] * len(windows)
        # one head more than the tree is deep tells of the bonus position, for evidence
        deepest = max(gamma + sequence.request.evidence for sequence, gamma in ready)
        depth = max(1, min(deepest, self._tree.depth + 1, self._heads.count))
        states = torch.stack([self._states[sequence.id][1] for sequence, _ in ready])
        logits = self._heads.logits(states, depth)
        best = self._best(logits)
        found = {}
        for (sequence, gamma), rows, tops in zip(ready, logits, best, strict=True):
            shape = self._tree.shape(min(gamma, self._tree.depth))
            if is_plain(sequence):
                places = zip(shape.depths, shape.ranks, strict=True)
                tree = CandidateTree(tuple(tops[d][rank] for d, rank in places), shape.parents)
            else:
                tree = self._ruled(sequence, rows, shape)
            found[sequence.id] = self._told(sequence, rows, tree)
        return [found.get(sequence.id, NOTHING) for sequence, _ in windows]

    def learn(self, sequence: Seq, start: int, states: Tensor) -> None:
        """Keep the last state; a copy, so that the step's others can go."""
        if len(states):
            self._states[sequence.id] = (start + len(states) - 1, states[-1].clone())

    def release(self, sequence: Seq) -> None:
        """Drop the state."""
        self._states.pop(sequence.id, None)

    def held(self) -> tuple[int, int]:
        """Bytes of the heads, and of the states kept."""
        states = sum(s.numel() * s.element_size() for _, s in self._states.values())
        return (self._heads.bytes, states)

    def _knows(self, sequence: Seq) -> bool:
        """Whether the state before the last committed token is at hand."""
        at, _ = self._states.get(sequence.id, (-1, None))
        return at == len(sequence.tokens) - 2 >= 0

    def _best(self, logits: Tensor) -> list[list[list[int]]]:
        """Target ids of the best rows, by sequence and depth."""
        top = logits.topk(self._tree.width, dim=-1).indices
        ids = self._heads.ids
        found: list[list[list[int]]] = (top if ids is None else ids[top]).tolist()
        return found

    def _ruled(self, sequence: Seq, rows: Tensor, shape: Shape) -> CandidateTree:
        """The same by the rules of a request: a token that it cannot emit here gives way to the next.

        Rules depend on the path, so each context is ranked for itself; where fewer tokens are
        possible than the tree asks for, candidates and all below them are left out.
        """
        wide = spread(rows, self._heads.ids, self._vocab)
        tokens: list[int] = []
        parents: list[int] = []
        paths: dict[int, tuple[int, tuple[int, ...]]] = {0: (-1, ())}
        for context, below in enumerate(shape.children):
            if not below or context not in paths:
                continue
            parent, path = paths[context]
            row = adjusted(wide[shape.depths[below[0]]], sequence, path)
            order = ranked(row, shape.ranks[below[-1]] + 1)
            for child in below:
                if shape.ranks[child] < len(order):
                    token = order[shape.ranks[child]]
                    paths[child + 1] = (len(tokens), (*path, token))
                    tokens.append(token)
                    parents.append(parent)
        return CandidateTree(tuple(tokens), tuple(parents))

    def _told(self, sequence: Seq, rows: Tensor, tree: CandidateTree) -> CandidateTree:
        """With evidence, where asked for: what the next head would say where a branch ends."""
        if not sequence.request.evidence:
            return tree
        wide = spread(rows, self._heads.ids, self._vocab)
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        q = {
            context: point_mass(int(adjusted(wide[len(path)], sequence, path).argmax()), wide[0])
            for context, (path, below) in enumerate(zip(paths, tree.children, strict=True))
            if not below and len(path) < len(wide)
        }
        return replace(tree, q=q)
