"""Judge the candidates of one step: each sequence's tree against its rows of the target's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference import rules
from gatekeeper_adapters.engines.reference.typical import Typical
from gatekeeper_adapters.engines.reference.uniforms import Numbers
from gatekeeper_adapters.engines.reference.verify import EXACT, Verdict, verify, verify_greedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.scheduler import Work
    from gatekeeper_adapters.engines.reference.tree import CandidateTree
    from gatekeeper_adapters.engines.reference.verify import Verifier

__all__ = ["Judged", "judge"]


@dataclass(frozen=True)
class Judged:
    """A verdict with what evidence needs: ``logits`` [n + 1, V] raw, by context of the tree."""

    work: Work
    tree: CandidateTree
    logits: Tensor
    verdict: Verdict


def judge(
    works: Sequence[Work],
    trees: Sequence[CandidateTree],
    logits: Tensor,
    verifier: Verifier | Typical = EXACT,
) -> list[Judged]:
    """Verdicts of all works that end in a window; ``logits`` [R, V] hold their rows in order.

    Rows are processed when the verifier reaches them; greedy rows without processors share one
    arg max over the whole batch.
    """
    best: list[int] | None = None
    judged, row = [], 0
    for work, tree in zip(works, trees, strict=True):
        if work.window is None:
            continue
        count = len(tree.tokens) + 1
        own = logits[row : row + count]
        if _follows_best(verifier) and rules.is_plain_greedy(work.sequence):
            best = logits.argmax(dim=-1).tolist() if best is None else best
            verdict = _plain(best[row : row + count], tree)
        else:
            verdict = _ruled(work, tree, own, verifier)
        judged.append(Judged(work, tree, own, verdict))
        row += count
    return judged


def _plain(best: Sequence[int], tree: CandidateTree) -> Verdict:
    return verify_greedy(lambda context, _: best[context], tree)


def _follows_best(verifier: Verifier | Typical) -> bool:
    """Whether greedy requests get the arg max: always, unless a test planted a fault."""
    return verifier is EXACT or isinstance(verifier, Typical)


def _ruled(
    work: Work, tree: CandidateTree, logits: Tensor, verifier: Verifier | Typical
) -> Verdict:
    sequence = work.sequence
    if _follows_best(verifier) and sequence.request.sampling.greedy:
        return verify_greedy(
            lambda context, path: int(rules.adjusted(logits[context], sequence, path).argmax()),
            tree,
        )

    def target(context: int, path: Sequence[int]) -> Tensor:
        return rules.processed(logits[context], sequence, path)

    numbers = Numbers(sequence.request.seed, sequence.produced, tree.depth + 1)
    if isinstance(verifier, Typical):
        return verifier.verify(target, tree, numbers)
    return verify(target, tree, numbers, verifier)
