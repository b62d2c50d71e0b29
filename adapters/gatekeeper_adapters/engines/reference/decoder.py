"""What the engine needs of a model: one packed forward over a slot cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.cache import SlotCache
    from gatekeeper_adapters.engines.reference.packing import PackedBatch

__all__ = ["Decoder"]


class Decoder(Protocol):
    """Implemented by ``model.LlamaDecoder`` and ``fallback.SlotDecoder``."""

    vocab_size: int
    layers: int
    weight_bytes: int
    device: str
    cache: SlotCache

    def forward(self, batch: PackedBatch) -> Tensor:
        """Cache the batch's keys and values; return float32 logits of its wanted rows."""
        ...

    def forward_with_states(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """``forward``, and the last hidden states [N, H] of every row after the final norm."""
        ...

    def partial(self, layers: Sequence[int]) -> Callable[[PackedBatch], Tensor]:
        """``forward`` through some of the layers, in order, over the same weights and cache.

        The cache rows of other layers keep what they held.

        Raises:
            Incompatible: this model cannot run without the others.
        """
        ...
