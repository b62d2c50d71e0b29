"""Slot KV cache: each sequence owns a slot and has its own length; rollback lowers an integer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.packing import PackedBatch

__all__ = ["SlotCache"]


class SlotCache:
    """Keys and values [layers, 2, slots, positions, kv heads, head size].

    Lengths live with the sequences, so admitting, retiring and rolling back copy nothing. The
    buffer starts as zeros: rows beyond a sequence's length are masked, and 0 × NaN would poison.
    ``aligned`` asks ``packing`` for attention whose bits depend on positions alone.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        positions: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str,
        aligned: bool = False,
    ) -> None:
        shape = (layers, 2, slots, positions, kv_heads, head_dim)
        self.positions = positions
        self.slots = slots
        self.device = device
        self.aligned = aligned
        if device == "cpu":
            # calloc: pages no sequence reaches are never touched
            size = torch.empty((), dtype=dtype).element_size()
            raw = torch.from_numpy(np.zeros(int(np.prod(shape)) * size, dtype=np.uint8))
            self.buffer = raw.view(dtype).view(shape)
        else:
            self.buffer = torch.zeros(shape, dtype=dtype, device=device)
        self._flat = self.buffer.view(layers, 2, slots * positions, kv_heads, head_dim)
        self.bytes_per_token = self.buffer[:, :, 0, 0].numel() * self.buffer.element_size()

    @property
    def bytes(self) -> int:
        """Bytes reserved for all slots."""
        return int(self.buffer.numel() * self.buffer.element_size())

    def write(self, layer: int, batch: PackedBatch, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` and ``values`` [N, kv heads, head size] at the batch's flat rows."""
        self._flat[layer, 0].index_copy_(0, batch.cache_rows, keys)
        self._flat[layer, 1].index_copy_(0, batch.cache_rows, values)

    def keep_path(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Make a tree's accepted branch contiguous: row ``start + path[i]`` moves to ``start + i``."""
        moved = [(start + i, start + node) for i, node in enumerate(path) if node != i]
        if moved:
            to, source = (
                torch.tensor(rows, device=self.device) for rows in zip(*moved, strict=True)
            )
            self.buffer[:, :, slot, to] = self.buffer[:, :, slot, source]

    def saved(self, slot: int, start: int, count: int) -> Tensor:
        """A copy [layers, 2, count, kv heads, head size] of a slot's rows."""
        return self.buffer[:, :, slot, start : start + count].clone()

    def restore(self, slot: int, start: int, rows: Tensor) -> None:
        """Put back rows that ``saved`` copied, at the same positions of any slot."""
        self.buffer[:, :, slot, start : start + rows.shape[2]] = rows

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one slot to another (self-test at start only)."""
        self.buffer[:, :, target, :length] = self.buffer[:, :, source, :length]
