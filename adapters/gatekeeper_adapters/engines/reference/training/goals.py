"""What the target says at every place, in few numbers: the goals that a drafter learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor

    from gatekeeper_adapters.engines.reference.training.texts import Text

__all__ = ["Goals", "Lineup", "goals_of", "line_up"]

TOP = 12
"""Likeliest ids kept of each place: what is left out is what a draft would never say first."""

OTHERS = 1024
"""Rows drawn for a step beside those of its goals: the rest of the vocabulary, in samples."""


@dataclass(frozen=True)
class Goals:
    """Of each of a text's ``rows(1)`` the likeliest head rows int64 [n, TOP] and their shares of 1."""

    rows: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Lineup:
    """The head rows [C, H] that one step's drafts choose from; ``place`` [R] is where each stands."""

    head: Tensor
    place: Tensor

    def spread(self, goals: Goals) -> Tensor:
        """The goals as shares [n, C] of these rows."""
        wide = torch.zeros(len(goals.rows), len(self.head))
        return wide.scatter_(1, self.place[goals.rows], goals.shares)


def goals_of(text: Text, head: Tensor) -> Goals:
    """The target's likeliest rows of ``head`` [R, H] where the text's answer is decided."""
    logits = text.states[text.first :].float() @ head.T
    top, rows = logits.topk(min(TOP, len(head)), dim=-1)
    return Goals(rows, (top - logits.logsumexp(dim=-1, keepdim=True)).exp_())


def line_up(goals: Sequence[Goals], head: Tensor, generator: Generator) -> Lineup:
    """Every row that one of the goals names, and others drawn by the generator.

    Of a vocabulary of 8192 about 2600 rows: a medusa head learned as much from 4100, for more.
    """
    others = torch.randint(len(head), (OTHERS,), generator=generator)
    chosen = torch.cat([*(each.rows.flatten() for each in goals), others]).unique()
    place = torch.zeros(len(head), dtype=torch.int64)
    place[chosen] = torch.arange(len(chosen))
    return Lineup(head[chosen], place)
