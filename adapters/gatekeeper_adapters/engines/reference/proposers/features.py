"""What the proposers over EAGLE's network share: a draft cache that follows the target's states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.drafter import spread
from gatekeeper_adapters.engines.reference.packing import Segment
from gatekeeper_adapters.engines.reference.proposers.base import Proposer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.eagle_net import EagleNet
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["Branches", "FeatureProposer"]


@dataclass
class _Followed:
    """``true`` rows of the slot were computed from the target's states; ``waiting`` ones come next."""

    true: int = 0
    waiting: list[Tensor] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Positions of the text whose states were told."""
        return self.true + sum(len(states) for states in self.waiting)


@dataclass
class Branches:
    """Candidates of one sequence that the network has read, below its last committed token.

    ``tokens``, ``parents`` (−1 for the last committed token) and guessed ``states`` [H] by place;
    their cache rows follow the text's in the same order.
    """

    sequence: Seq
    root: Tensor
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def add(self, token: int, parent: int) -> int:
        """Name a candidate to be read next; returns its place."""
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1


class FeatureProposer(Proposer):
    """Catches up with committed text before it drafts.

    Drafted rows are never kept: the next round writes them anew, from the target's own states. So
    nothing needs to be rolled back, and a round costs the pairs that came since the last one, those
    of all sequences in one forward.
    """

    reads_states = True

    def __init__(self, net: EagleNet) -> None:
        self._net = net
        self._followed: dict[str, _Followed] = {}

    def admit(self, sequence: Seq) -> None:
        """Nothing is known yet; the slot number is the target's."""
        self._followed[sequence.id] = _Followed()

    def learn(self, sequence: Seq, start: int, states: Tensor) -> None:
        """Keep states until the next forward. After a gap in them the sequence is no longer drafted."""
        followed = self._followed[sequence.id]
        if start == followed.known and len(states):
            followed.waiting.append(states.to(dtype=self._net.dtype))

    def prefill(self, chunks: Sequence[tuple[Seq, int]]) -> None:
        """Read the prompt pieces that the target cached before."""
        self._catch_up([sequence for sequence, _ in chunks], set())

    def release(self, sequence: Seq) -> None:
        """The slot's rows are overwritten by the next owner."""
        self._followed.pop(sequence.id, None)

    def held(self) -> tuple[int, int]:
        """Bytes of weights; of the cache and of the states not read yet."""
        waiting = sum(
            states.numel() * states.element_size()
            for followed in self._followed.values()
            for states in followed.waiting
        )
        return (self._net.weight_bytes, self._net.cache.bytes + waiting)

    def _begin(self, windows: Sequence[tuple[Seq, int]]) -> tuple[list[Branches], Tensor]:
        """Branches to grow, and float32 logits [n, rows] of the first token of each.

        Only of sequences whose states are known up to the last committed token: not in the step
        that caches a prompt's end.
        """
        ready = {
            sequence.id
            for sequence, _ in windows
            if self._followed[sequence.id].known == len(sequence.tokens) - 1 > 0
        }
        logits, states = self._catch_up([sequence for sequence, _ in windows], ready)
        begun = [sequence for sequence, _ in windows if sequence.id in ready]
        return [Branches(*pair) for pair in zip(begun, states, strict=True)], logits

    def _catch_up(self, sequences: Sequence[Seq], ready: set[str]) -> tuple[Tensor, Tensor]:
        """Read all waiting pairs; logits and guessed states after the last pair of those ready."""
        segments, states = [], []
        for sequence in sequences:
            followed = self._followed[sequence.id]
            if followed.waiting:
                start, end = followed.true, followed.known
                tokens = sequence.tokens[start + 1 : end + 1]
                segments.append(Segment(sequence.slot, start, tokens, int(sequence.id in ready)))
                states += followed.waiting
                followed.true, followed.waiting = end, []
        return self._forward(segments, states)

    def _extend(self, grown: Sequence[tuple[Branches, int]]) -> Tensor:
        """Read the last so many candidates of each; logits [rows, head rows] of all, in order."""
        segments, states = [], []
        for branches, count in grown:
            start = len(branches.sequence.tokens) - 1 + len(branches.tokens) - count
            tokens, parents = branches.tokens[-count:], tuple(branches.parents)
            chain = parents == tuple(range(-1, len(parents) - 1))
            segments.append(
                Segment(branches.sequence.slot, start, tokens, count, () if chain else parents)
            )
            states += [
                branches.root if parent < 0 else branches.states[parent]
                for parent in parents[-count:]
            ]
        logits, guessed = self._forward(segments, [torch.stack(states)])
        first = 0
        for branches, count in grown:
            branches.states += guessed[first : first + count]
            first += count
        return logits

    def _room(self, branches: Branches) -> int:
        """Cache rows left for candidates: near the context's edge few can be read."""
        used = len(branches.sequence.tokens) - 1 + len(branches.tokens)
        return self._net.cache.positions - used

    def _forward(
        self, segments: Sequence[Segment], states: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        net = self._net
        if not segments:
            empty = torch.empty(0, net.hidden, dtype=net.dtype, device=net.device)
            return empty.new_empty(0, net.head_rows, dtype=torch.float32), empty
        return net.forward(net.pack(segments), torch.cat(list(states)))

    def _spread(self, row: Tensor) -> Tensor:
        """Draft logits as one row [V]; ids the draft cannot name get −inf."""
        return spread(row.unsqueeze(0), self._net.ids, self._net.vocab_size)[0]
