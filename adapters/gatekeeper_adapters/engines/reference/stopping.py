"""Where an answer ends inside an accepted run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper_adapters.engines.reference.scheduler import Sequence

__all__ = ["cut"]


def cut(sequence: Sequence, tokens: list[int]) -> list[int]:
    """``tokens`` up to and with the first end token."""
    for place, token in enumerate(tokens):
        if token in sequence.request.end_tokens:
            return tokens[: place + 1]
    return tokens
