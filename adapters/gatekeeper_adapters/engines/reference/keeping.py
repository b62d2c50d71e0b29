"""What of a step's cached rows stays: the text, and the accepted branch of each tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.cache import SlotCache
    from gatekeeper_adapters.engines.reference.judge import Judged
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq
    from gatekeeper_adapters.engines.reference.scheduler import Work
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["keep"]


def keep(
    works: Sequence[Work],
    trees: Sequence[CandidateTree],
    judged: Sequence[Judged],
    cache: SlotCache,
    *,
    states: Tensor | None,
    learn: Callable[[Seq, int, Tensor], None],
) -> None:
    """Make accepted branches contiguous in the cache and raise what each sequence has ``cached``.

    ``states`` [N, H] of all rows, where they were read; ``learn(sequence, start, rows)`` gets those
    of the text and the accepted branch.
    """
    paths = {entry.work.sequence.slot: entry.verdict.path for entry in judged}
    first = 0
    for work, tree in zip(works, trees, strict=True):
        sequence, path = work.sequence, paths.get(work.sequence.slot, ())
        top = first + work.until - sequence.cached
        cache.keep_path(sequence.slot, work.until, path)
        if states is not None and sequence.request.gamma:
            rows = [*range(first, top), *(top + node for node in path)]
            learn(sequence, sequence.cached, states[rows])
        sequence.cached = work.until
        first = top + len(tree.tokens)
