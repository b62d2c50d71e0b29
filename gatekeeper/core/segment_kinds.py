"""The kinds of time that a task is made of.

``task time = queue + prefill + decode + tool + verification + persistence + human_wait + other``
"""

from __future__ import annotations

__all__ = ["KINDS", "MODEL", "PHASES", "WORK"]

KINDS = (
    "queue",
    "prefill",
    "decode",
    "tool",
    "verification",
    "persistence",
    "human_wait",
    "other",
)
"""Segment kinds, in the order of the task-time equation."""

MODEL = "model"
"""Kind of a span that is a model call; it never reaches the decomposition unsplit."""

PHASES = ("prefill", "decode")
"""Kinds that only a model call has; a span of such a kind is part of one."""

WORK = frozenset(KINDS) - {"other"}
"""Kinds whose own time means something even where the span has children."""
