"""Conditional greedy acceptance per depth on held-out text, beside a table of bigrams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.training.networks import Network
    from gatekeeper_adapters.engines.reference.training.texts import Text

__all__ = ["Acceptance", "acceptance", "bigram_acceptance"]


@dataclass(frozen=True)
class Acceptance:
    """``reached[k]`` windows whose first k draft tokens were right, and of them ``accepted[k]`` the next.

    On greedy text of the target the draft token is accepted exactly when it is the text's next one,
    so a window that is right so far stands on the text itself.
    """

    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """``conditional_acceptance[k]`` of each depth; None where no window came so far."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return tuple(right / all_ if all_ else None for right, all_ in pairs)


def acceptance(
    network: Network, texts: Sequence[Text], head: Tensor, ids: Tensor, *, depth: int
) -> Acceptance:
    """Draft windows of ``depth`` tokens at every place of greedy texts.

    ``head`` float32 [R, H] the target's rows of the draft vocabulary ``ids`` int64 [R].
    """
    hits = []
    with torch.inference_mode():
        for text in texts:
            said = [ids[(states @ head.T).argmax(dim=-1)] for states in network(text, depth)]
            hits.append(_right(said, text))
    return _count(hits, depth)


def bigram_acceptance(
    train: Sequence[Text], texts: Sequence[Text], *, vocab_size: int, depth: int
) -> Acceptance:
    """As ``acceptance``, of the commonest successor of each token in the training texts."""
    pairs = torch.cat([text.tokens[:-1] * vocab_size + text.tokens[1:] for text in train])
    found, counts = pairs.unique(return_counts=True)
    # ascending, the last one written wins: so by count, and the lower id among equals
    order = torch.sort(counts * vocab_size + (vocab_size - 1 - found % vocab_size)).indices
    follows = torch.full((vocab_size,), -1)
    for pair in found[order].tolist():
        follows[pair // vocab_size] = pair % vocab_size
    return _count([_right([follows[_at(text, 1)]], text) for text in texts], depth)


def _at(text: Text, depth: int) -> Tensor:
    rows = text.rows(depth)
    return text.tokens[rows.start : rows.stop]


def _right(said: Sequence[Tensor], text: Text) -> list[Tensor]:
    """For each depth, at which of its rows the draft's token is the text's next."""
    right = []
    for depth, tokens in enumerate(said, start=1):
        rows = text.rows(depth)
        right.append(tokens == text.tokens[rows.start + 1 : rows.stop + 1])
    return right


def _count(hits: Sequence[Sequence[Tensor]], depth: int) -> Acceptance:
    reached, accepted = [0] * depth, [0] * depth
    for right in hits:
        if not right:
            continue
        alive = torch.ones(len(right[0]), dtype=torch.bool)
        for k, here in enumerate(_by_depth(right, depth)):
            alive = alive[: len(here)]
            reached[k] += int(alive.sum())
            alive = alive & here
            accepted[k] += int(alive.sum())
    return Acceptance(tuple(reached), tuple(accepted))


def _by_depth(right: Sequence[Tensor], depth: int) -> Sequence[Tensor]:
    """One depth stands for all: what it says at a row does not depend on where the window began."""
    return right if len(right) > 1 else [right[0][k:] for k in range(depth)]
