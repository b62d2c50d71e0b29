"""A small separate language model drafts a chain of tokens, batched over sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.drafter import spread
from gatekeeper_adapters.engines.reference.packing import Segment, pack
from gatekeeper_adapters.engines.reference.proposers.base import Proposer
from gatekeeper_adapters.engines.reference.proposers.chain import HONEST, Drawing, draft_chains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.model import LlamaDecoder
    from gatekeeper_adapters.engines.reference.proposers.chain import Chain
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["DraftLmProposer"]


class DraftLmProposer(Proposer):
    """Chain drafting with the draft model's own slot cache and, where trimmed, its token map.

    The draft's logits are spread over the target's vocabulary (ids outside the map can never be
    drawn) and then processed exactly as the target's are, so ``q`` is dense over V.
    """

    name = "draft_lm"

    def __init__(
        self,
        decoder: LlamaDecoder,
        *,
        vocab_size: int,
        token_map: Tensor | None,
        drawing: Drawing = HONEST,
    ) -> None:
        self._decoder = decoder
        self._vocab = vocab_size
        self._map = token_map
        self._ids: list[int] | None = None if token_map is None else token_map.tolist()
        self._drawing = drawing
        self._cached: dict[str, int] = {}

    def admit(self, sequence: Seq) -> None:
        """Nothing is cached yet; the slot number is the target's."""
        self._cached[sequence.id] = 0

    def prefill(self, chunks: Sequence[tuple[Seq, int]]) -> None:
        """Cache the same prompt pieces as the target does in this step."""
        segments = []
        for sequence, until in chunks:
            start = self._cached[sequence.id]
            segments.append(Segment(sequence.slot, start, sequence.tokens[start:until], 0))
            self._cached[sequence.id] = until
        self._forward(segments)

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Draft up to gamma tokens each; every forward serves all sequences still drafting."""
        return draft_chains(windows, self._extend, spread=self._spread, drawing=self._drawing)

    def settle(self, sequence: Seq, before: int, accepted: int) -> None:
        """Keep what matches the committed text; the rest is overwritten later."""
        self._cached[sequence.id] = min(self._cached[sequence.id], before + accepted)

    def release(self, sequence: Seq) -> None:
        """The slot's rows are overwritten by the next owner."""
        self._cached.pop(sequence.id, None)

    def held(self) -> tuple[int, int]:
        """Bytes of draft weights and draft cache."""
        return (self._decoder.weight_bytes, self._decoder.cache.bytes)

    def _forward(self, segments: Sequence[Segment]) -> Tensor:
        return self._decoder.forward(pack(segments, self._decoder.cache))

    def _extend(self, chains: Sequence[Chain]) -> tuple[Tensor, list[int]]:
        """Cache what each chain has beyond the draft's cache; the last row speaks of the next token."""
        segments = []
        for chain in chains:
            start = self._cached[chain.sequence.id]
            segments.append(Segment(chain.sequence.slot, start, chain.since(start), 1))
            self._cached[chain.sequence.id] = chain.end
        logits = self._forward(segments)
        best = logits.argmax(dim=-1).tolist()
        return logits, best if self._ids is None else [self._ids[top] for top in best]

    def _spread(self, row: Tensor) -> Tensor:
        """Draft logits as one row [V]; ids the draft cannot name get −inf."""
        return spread(row.unsqueeze(0), self._map, self._vocab)[0]
