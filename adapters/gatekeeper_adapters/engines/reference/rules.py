"""The rules of one sequence, between a row of logits and the distribution of its next token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from gatekeeper_adapters.engines.reference.sampling import NEVER, adjust, distribution
from gatekeeper_adapters.engines.reference.sampling import is_plain as keeps_logits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["Grammar", "adjusted", "is_plain", "is_plain_greedy", "possible", "processed"]


class Grammar(Protocol):
    """What structured output asks of a constraint: which tokens may follow the text so far."""

    def allowed(self, path: Sequence[int]) -> Tensor:
        """Bool [V] for the token after the committed text and ``path``, draft tokens beyond it."""
        ...

    def permitted(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens``, one after the other, some answer begins with."""
        ...

    def length(self, tokens: Sequence[int]) -> int:
        """How many of the tokens that follow the text belong to the answer."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens were appended."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the text can be followed no further: the grammar grew too complex, or it never could."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole answer that nothing can follow but an end token."""
        ...


def is_plain(sequence: Seq) -> bool:
    """Whether ``adjusted`` leaves logits as they are, here and on any path."""
    request = sequence.request
    early = bool(request.end_tokens) and sequence.produced < request.min_tokens
    return keeps_logits(request.sampling) and not early and sequence.grammar is None


def is_plain_greedy(sequence: Seq) -> bool:
    """Whether the arg max of raw logits is the next token, here and on any path."""
    return sequence.request.sampling.greedy and is_plain(sequence)


def adjusted(row: Tensor, sequence: Seq, path: Sequence[int] = ()) -> Tensor:
    """Logits [V] of the token after ``path``: bias, penalties, minimum length, grammar.

    Where the grammar allows an end token only, it wins over the minimum length.
    """
    request = sequence.request
    early = sequence.produced + len(path) < request.min_tokens
    out = adjust(
        row.unsqueeze(0),
        request.sampling,
        [*sequence.tokens, *path],
        banned=request.end_tokens,
        banned_rows=int(early),
    )[0]
    if sequence.grammar is None:
        return out
    allowed = sequence.grammar.allowed(path).to(row.device)
    kept = out.masked_fill(~allowed, NEVER)
    return kept if possible(kept) else row.masked_fill(~allowed, NEVER)


def possible(logits: Tensor) -> bool:
    """Whether any token is allowed at all."""
    return bool(torch.isfinite(logits.max()))


def processed(row: Tensor, sequence: Seq, path: Sequence[int] = ()) -> Tensor:
    """The one distribution float32 [V] that draft, accept, residual and bonus use after ``path``."""
    return distribution(adjusted(row, sequence, path).unsqueeze(0), sequence.request.sampling)[0]
