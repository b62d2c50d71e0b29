"""A small separate language model drafts a chain of tokens, batched over sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.packing import Segment, pack
from gatekeeper_adapters.engines.reference.proposers.base import Proposal
from gatekeeper_adapters.engines.reference.sampling import adjust, distribution, draw, is_plain
from gatekeeper_adapters.engines.reference.uniforms import uniforms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.model import LlamaDecoder
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["HONEST", "DraftLmProposer", "Drawing"]


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
class _Chain:
    """One sequence's window being drafted; ``total`` includes the bonus position for evidence."""

    sequence: Seq
    gamma: int
    total: int
    numbers: list[float]
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    stuck: bool = False

    @property
    def done(self) -> bool:
        return self.stuck or len(self.tokens) >= self.total


class DraftLmProposer:
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

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[Proposal]:
        """Draft up to gamma tokens each; every forward serves all sequences still drafting."""
        chains = []
        for sequence, gamma in windows:
            request = sequence.request
            total = gamma + request.evidence
            numbers = [u.draft for u in uniforms(request.seed, sequence.produced, total)]
            chains.append(_Chain(sequence, gamma, total, numbers))
        live = chains
        segments = [self._catch_up(chain.sequence) for chain in live]
        while live:
            logits = self._forward(segments)
            best = logits.argmax(dim=-1).tolist()
            for chain, row, top in zip(live, logits, best, strict=True):
                self._choose(chain, row, top)
            live = [chain for chain in live if not chain.done]
            segments = [self._next(chain) for chain in live]
        return [_proposal(chain) for chain in chains]

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

    def _catch_up(self, sequence: Seq) -> Segment:
        start = self._cached[sequence.id]
        self._cached[sequence.id] = len(sequence.tokens)
        return Segment(sequence.slot, start, sequence.tokens[start:], 1)

    def _next(self, chain: _Chain) -> Segment:
        start = self._cached[chain.sequence.id]
        self._cached[chain.sequence.id] = start + 1
        return Segment(chain.sequence.slot, start, chain.tokens[-1:], 1)

    def _choose(self, chain: _Chain, row: Tensor, top: int) -> None:
        sequence = chain.sequence
        request, place = sequence.request, len(chain.tokens)
        early = sequence.produced + place < request.min_tokens and bool(request.end_tokens)
        if request.sampling.greedy and is_plain(request.sampling) and not early:
            chain.tokens.append(top if self._ids is None else self._ids[top])
            return
        adjusted = adjust(
            self._spread(row),
            request.sampling,
            [*sequence.tokens, *chain.tokens],
            banned=request.end_tokens,
            banned_rows=int(early),
        )
        if not bool(torch.isfinite(adjusted.max())):  # nothing the draft knows is allowed here
            chain.stuck = True
        elif request.sampling.greedy:
            chain.tokens.append(int(adjusted.argmax()))
        else:
            q = distribution(adjusted, request.sampling)[0]
            chain.tokens.append(self._drawing.pick(q, chain.numbers[place]))
            chain.rows.append(self._drawing.claim(q))

    def _spread(self, row: Tensor) -> Tensor:
        """Draft logits as one row [1, V]; ids the draft cannot name get −inf."""
        if self._map is None:
            return row[: self._vocab].unsqueeze(0)
        wide = row.new_full((1, self._vocab), float("-inf"))
        wide[0, self._map] = row
        return wide


def _proposal(chain: _Chain) -> Proposal:
    tokens = tuple(chain.tokens[: chain.gamma])
    if chain.rows:
        return Proposal(tokens, torch.stack(chain.rows))
    extra = chain.tokens[chain.gamma :]
    return Proposal(tokens, following=extra[0] if extra else None)
