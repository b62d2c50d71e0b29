"""What is kept of an equivalence run, and what the next one has to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TABLES", "Before"]

TABLES = ("context", "requests", "strict", "tolerance", "greedy", "cost")
"""Evidence tables; ``context`` holds (name, value) pairs that the verdict needs, ``cost`` what this run
alone took."""


@dataclass(frozen=True)
class Before:
    """What a plan has to know of the runs that it continues.

    ``runs`` and sampled ``tokens`` so far; ``compared`` are the prompts with both greedy texts,
    ``turns`` the sampled requests of each prompt.
    """

    runs: int
    tokens: int
    compared: frozenset[str] = frozenset()
    turns: Mapping[str, int] = field(default_factory=dict)
