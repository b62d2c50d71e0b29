"""Ask the proposer about the sequences of one step that speculate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq
    from gatekeeper_adapters.engines.reference.scheduler import Work

__all__ = ["draft"]


def draft(proposer: Proposer, works: Sequence[Work]) -> list[CandidateTree]:
    """A tree for each work; the proposer hears nothing of requests without a window (gamma 0)."""
    speculative = [work for work in works if work.sequence.request.gamma]
    chunks = [(work.sequence, work.until) for work in speculative if work.window is None]
    if chunks:
        proposer.prefill(chunks)
    # an empty window asks for the bonus position's q alone, which only evidence needs
    asked = [
        (work.sequence, work.window)
        for work in speculative
        if work.window or (work.window == 0 and work.sequence.request.evidence)
    ]
    found = proposer.propose(asked) if asked else []
    by_slot = {
        sequence.slot: _lawful(sequence, tree)
        for (sequence, _), tree in zip(asked, found, strict=True)
    }
    return [by_slot.get(work.sequence.slot, NOTHING) for work in works]


def _lawful(sequence: Seq, tree: CandidateTree) -> CandidateTree:
    """Cut a deterministic chain where the grammar forbids the next token: it could not be accepted.

    Drawn candidates went through the grammar already. A look-up copies text and knows none.
    """
    if sequence.grammar is None or tree.q or not tree.is_chain:
        return tree
    count = sequence.grammar.permitted(tree.tokens)
    return tree if count == len(tree.tokens) else CandidateTree.chain(tree.tokens[:count])
