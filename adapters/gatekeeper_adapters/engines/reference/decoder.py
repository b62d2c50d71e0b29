"""What the engine needs of a model: one packed forward over a slot cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from gatekeeper_adapters.engines.reference.cache import SlotCache
    from gatekeeper_adapters.engines.reference.packing import PackedBatch

__all__ = ["Decoder"]


class Decoder(Protocol):
    """Implemented by ``model.LlamaDecoder`` and ``fallback.SlotDecoder``."""

    vocab_size: int
    weight_bytes: int
    device: str
    cache: SlotCache

    def forward(self, batch: PackedBatch) -> Tensor:
        """Cache the batch's keys and values; return float32 logits of its wanted rows."""
        ...
