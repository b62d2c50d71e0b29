"""Attention of packed rows over the slot cache, shared by the own forward and the fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor

    from gatekeeper_adapters.engines.reference.cache import SlotCache
    from gatekeeper_adapters.engines.reference.packing import PackedBatch

__all__ = ["attend", "group_masks"]


def group_masks(batch: PackedBatch, groups: int) -> list[Tensor | None]:
    """The batch's masks repeated for the query heads of a group: bool [groups·q, context]."""
    return [mask if mask is None else mask.repeat(groups, 1) for mask in batch.masks]


def attend(
    query: Tensor,
    cache: SlotCache,
    layer: int,
    batch: PackedBatch,
    *,
    masks: list[Tensor | None],
    scale: float,
) -> Tensor:
    """Attend ``query`` [N, heads, d] to each row's own sequence; returns [N, heads·d].

    Sequences are looped over, so none is padded. The query heads that share one KV head become
    rows of it ([KV, G·q, d]), so keys and values are never repeated.
    """
    rows, heads, size = query.shape
    keys, values = cache.buffer[layer, 0], cache.buffer[layer, 1]
    kv = keys.shape[2]
    groups = heads // kv
    out = torch.empty_like(query)
    for (slot, first, end, context), mask in zip(batch.spans, masks, strict=True):
        k = keys[slot, :context].transpose(0, 1).unsqueeze(0)
        v = values[slot, :context].transpose(0, 1).unsqueeze(0)
        if mask is None:
            part = scaled_dot_product_attention(
                query[first].view(1, kv, groups, size), k, v, scale=scale
            )
            out[first] = part.view(heads, size)
            continue
        count = end - first
        q = query[first:end].view(count, kv, groups, size).permute(1, 2, 0, 3)
        part = scaled_dot_product_attention(
            q.reshape(1, kv, groups * count, size), k, v, attn_mask=mask, scale=scale
        )
        out[first:end] = (
            part.view(kv, groups, count, size).permute(2, 0, 1, 3).reshape(count, heads, size)
        )
    return out.view(rows, heads * size)
