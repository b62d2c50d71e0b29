"""The target drafts for itself with some of its layers left out.

Early exit (Elhoushi et al., arXiv:2404.16710) and layer skipping (Zhang et al., arXiv:2309.08168).
Weights and KV cache are the target's. A draft step writes keys and values of the kept layers at the
window's positions: from the last committed token, which the target has not cached yet, to the last
token drafted. Verification starts at that same token and writes every layer at every position of
the window before it attends there, so the target never reads what a draft step wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.packing import Segment, pack
from gatekeeper_adapters.engines.reference.proposers.base import Proposer
from gatekeeper_adapters.engines.reference.proposers.chain import HONEST, Drawing, draft_chains
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.proposers.chain import Chain
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["SelfSpeculationProposer"]


class SelfSpeculationProposer(Proposer):
    """Chain drafting with the layers ``kept`` of the target, then its own norm and head.

    A draft step costs the kept share of the layers and the whole head. Nothing is kept between
    rounds: what the target has cached is the draft's context too. A draft step's workspace, one row
    of activations and logits for each sequence, is gone before verification needs the same for
    gamma + 1 rows: the ledger's workspace covers it.
    """

    name = "self_speculation"

    def __init__(self, decoder: Decoder, *, kept: Sequence[int], drawing: Drawing = HONEST) -> None:
        self._cache = decoder.cache
        self._run = decoder.partial(kept)
        self._drawing = drawing

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Draft up to gamma tokens each, all sequences together.

        The step that caches a prompt's end drafts nothing: the draft would have to run that piece
        too, and its first token comes without it.
        """
        ready = [each for each in windows if len(each[0].tokens) - each[0].cached == 1]
        found = draft_chains(ready, self._extend, spread=lambda row: row, drawing=self._drawing)
        by_slot = {seq.slot: one for (seq, _), one in zip(ready, found, strict=True)}
        return [by_slot.get(sequence.slot, NOTHING) for sequence, _ in windows]

    def _extend(self, chains: Sequence[Chain]) -> tuple[Tensor, list[int]]:
        segments = [
            Segment(chain.sequence.slot, chain.end - 1, chain.since(chain.end - 1), 1)
            for chain in chains
        ]
        logits = self._run(pack(segments, self._cache))
        return logits, logits.argmax(dim=-1).tolist()
