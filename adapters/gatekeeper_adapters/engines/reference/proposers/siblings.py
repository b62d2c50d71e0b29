"""Which tokens stand below one context of a tree, from the draft's row there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.verify import without

if TYPE_CHECKING:
    from torch import Tensor

    from gatekeeper_adapters.engines.reference.proposers.chain import Drawing
    from gatekeeper_adapters.engines.reference.uniforms import Numbers

__all__ = ["drawn", "ranked"]


def ranked(logits: Tensor, count: int) -> list[int]:
    """The best ``count`` tokens of adjusted logits [V], best first; only possible ones."""
    if count == 1:
        best = logits.argmax()
        return [int(best)] if bool(torch.isfinite(logits[best])) else []
    values, tokens = logits.topk(min(count, logits.shape[0]))
    found: list[int] = tokens[torch.isfinite(values)].tolist()
    return found


def drawn(q: Tensor, count: int, numbers: Numbers, depth: int, drawing: Drawing) -> list[int]:
    """Up to ``count`` tokens from q [V], one after the other and without replacement.

    Fewer only where q has no more tokens: a matter of q alone, not of what was drawn, so the shape
    of the tree stays independent of the draws.
    """
    tokens: list[int] = []
    rest = q
    while len(tokens) < count and bool((rest > 0.0).any()):
        token = drawing.pick(rest, numbers(depth, len(tokens)).draft)
        tokens.append(token)
        if len(tokens) < count:
            rest = without(rest, token)
    return tokens
