"""Sizes of an engine that are fixed when it starts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Slots, positions per slot, prompt tokens cached in one step, bytes for shared prefixes.

    ``prefix_cache_bytes`` is what an engine without a draft would spend on prefixes; what the draft
    holds on the target's device is taken from it. 0 keeps none.
    """

    max_batch: int
    max_context: int
    prefill_chunk: int = 128
    prefix_cache_bytes: int = 0
