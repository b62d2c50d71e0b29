"""The ids a drafter may say: a head over all of a vocabulary costs more than the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.training.texts import Text

__all__ = ["draft_vocabulary"]


def draft_vocabulary(texts: Sequence[Text], vocab_size: int, rows: int) -> Tensor:
    """The ``rows`` ids [rows], ascending, most frequent in the texts; low ids fill what is left.

    Low ids of a byte-pair vocabulary are single bytes and the earliest, most frequent merges.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for text in texts:
        counts += torch.bincount(text.tokens, minlength=vocab_size)
    # stable: among equally frequent ids, those never seen among them, the lower one wins
    ranked = torch.sort(counts, descending=True, stable=True).indices
    return ranked[:rows].sort().values
