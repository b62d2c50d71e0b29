"""Turn a verdict into committed tokens, and into what the round tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gatekeeper.core.acceptance import Round
from gatekeeper.protocols import Emission, TokenLogprob
from gatekeeper_adapters.engines.reference.stopping import cut
from gatekeeper_adapters.engines.reference.verify import ACCEPTED, BONUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from gatekeeper_adapters.engines.reference.judge import Judged
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["commit"]


def commit(entry: Judged, *, memory: int, batch: int) -> tuple[Emission, Round]:
    """Append the accepted candidates and the verdict's token, as far as the first stop.

    Lengths roll back by not advancing: of the rows cached in this step the sequence keeps its own
    and those of the accepted candidates.
    """
    sequence, tree, verdict = entry.work.sequence, entry.tree, entry.verdict
    request, path = sequence.request, verdict.path
    before = len(sequence.tokens)
    tokens, sequence.stopped = cut(sequence, [*(tree.tokens[node] for node in path), verdict.token])
    count = len(tokens)
    full = count == len(path) + 1
    sequence.append(tokens)
    sequence.cached = before + count - 1
    contexts = [0, *(node + 1 for node in path)][:count]
    emission = Emission(
        request_id=sequence.id,
        round=sequence.rounds,
        tokens=tuple(tokens),
        kind=(ACCEPTED,) * (count - full) + ((verdict.kind,) if full else ()),
        draft=tuple(_proposed(tree, path, contexts)),
        q=_evidence(tree, contexts, entry.logits.shape[-1]) if request.evidence else None,
        logprobs=None
        if request.logprobs is None
        else _logprobs(entry.logits[contexts], tokens, request.logprobs),
    )
    complete, asked = verdict.kind == BONUS, entry.work.window or 0
    draft_s, verify_s, correction_s, transfer_s = sequence.spent
    record = Round(
        request_id=sequence.id,
        index=sequence.rounds,
        gamma=request.gamma if sequence.windows is None else asked,
        drafted=len(path) if complete else tree.depth,
        accepted=len(path),
        rejection_position=None if complete else len(path),
        committed=count,
        draft_s=draft_s,
        verify_s=verify_s,
        correction_s=correction_s,
        transfer_s=transfer_s,
        memory_bytes=memory,
        batch=batch,
        context=before,
    )
    if sequence.windows is not None and sequence.rounds:
        # the first round cached a prompt too: not every proposer drafts then
        sequence.windows.observe(asked, len(path))
    sequence.rounds += 1
    sequence.spent = [0.0] * 4
    return emission, record


def _logprobs(rows: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    """Log-probabilities by the raw ``rows`` [n, V] before each token, and of the ``top`` likeliest."""
    logs = torch.log_softmax(rows, dim=-1)
    chosen = logs.gather(1, torch.tensor(tokens, device=logs.device).unsqueeze(1)).squeeze(1)
    best = logs.topk(top, dim=-1)
    return tuple(
        TokenLogprob(value, tuple(zip(ids, values, strict=True)))
        for value, ids, values in zip(
            chosen.tolist(), best.indices.tolist(), best.values.tolist(), strict=True
        )
    )


def _proposed(tree: CandidateTree, path: Sequence[int], contexts: Sequence[int]) -> list[int]:
    """The candidate at each emitted position: the accepted one, else the first that was judged."""
    found = [tree.tokens[node] for node in path]
    if len(contexts) > len(path):
        below = tree.children[contexts[-1]]
        found.append(tree.tokens[below[0]] if below else -1)
    return found[: len(contexts)]


def _evidence(tree: CandidateTree, contexts: Sequence[int], vocab: int) -> NDArray[np.float32]:
    """The proposal's distribution at each context; NaN where there was none.

    Several deterministic candidates count alike: whatever is told here depends on earlier text only.
    """
    out = np.full((len(contexts), vocab), np.nan, dtype=np.float32)
    for values, context in zip(out, contexts, strict=True):
        row, below = tree.row(context), tree.children[context]
        candidates = [tree.tokens[child] for child in below]
        if not below and tree.following is not None:
            candidates = [tree.following]
        if row is not None:
            values[:] = row.cpu().numpy()
        elif candidates:
            values[:] = 0.0
            values[candidates] = 1.0 / len(candidates)
    return out
