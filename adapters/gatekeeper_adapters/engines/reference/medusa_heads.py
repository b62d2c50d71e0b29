"""Medusa's heads (Cai et al., arXiv:2401.10774): one small layer each on the target's last state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import silu

from gatekeeper.errors import Incompatible
from gatekeeper_adapters.engines.reference.drafter import borrow, read_drafter
from gatekeeper_adapters.engines.reference.linear import Linear

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.drafter import Lender

__all__ = ["MedusaHeads", "load_medusa"]

ARCHITECTURE = "GatekeeperMedusa"


@dataclass(frozen=True)
class MedusaHeads:
    """K heads: s_k = O_k (h + silu(W_k h + b_k)), logits_k = rows · s_k.

    ``mix`` is the W_k one below the other [K·H, H], ``bias`` [K, H], ``rows`` the head's [R, H];
    ``outs`` are the O_k [H, H], or empty: a file without ``outs`` in its config leaves them out.
    ``ids`` int64 [R] names the target id of each row, None where they are all. ``bytes`` counts what
    is held beyond the target's own storage.
    """

    mix: Linear
    bias: Tensor
    rows: Linear
    ids: Tensor | None
    bytes: int
    outs: tuple[Linear, ...] = ()

    @property
    def count(self) -> int:
        """K."""
        return int(self.bias.shape[0])

    def logits(self, states: Tensor, depth: int) -> Tensor:
        """float32 [B, depth, R] of the first ``depth`` heads for states [B, H]."""
        batch, size = states.shape
        mixed = self.mix(states).view(batch, self.count, size)[:, :depth]
        seen = states.unsqueeze(1) + silu(mixed + self.bias[:depth])
        if self.outs:
            pairs = zip(self.outs, seen.unbind(1), strict=False)
            seen = torch.stack([out(each.contiguous()) for out, each in pairs], dim=1)
        out: Tensor = self.rows(seen.reshape(batch * depth, size)).float()
        return out.view(batch, depth, -1)


def load_medusa(
    folder: Path,
    lender: Lender,
    *,
    heads: int | None = None,
    dtype: torch.dtype,
    device: str,
    invariant: bool = False,
) -> MedusaHeads:
    """Load the first ``heads`` heads of a folder, or all of them.

    Raises:
        Incompatible: another architecture, fewer heads, or shapes that do not fit the target.
    """
    read = read_drafter(folder, dtype=dtype, device=device)
    architectures = read.config.get("architectures", ())
    if ARCHITECTURE not in architectures:
        raise Incompatible(
            f"is not a {ARCHITECTURE}",
            field="proposer.source",
            value=str(architectures),
            remedy="name heads trained for this kind of proposer",
        )
    held = int(read.config["heads"])
    count = held if heads is None else heads
    if count > held:
        raise Incompatible(
            f"is more than the {held} heads in the file",
            field="proposer.parameters.heads",
            value=count,
            remedy=f"use at most {held}",
        )
    rows = borrow(lender, read.config, read.ids, dtype=dtype, device=device, invariant=invariant)
    size = rows.embed.shape[1]
    weights = [read.take(f"heads.{k}.weight", size, size) for k in range(count)]
    bias = torch.stack([read.take(f"heads.{k}.bias", size) for k in range(count)])
    mix = Linear(torch.cat(weights), invariant=invariant)
    outs = tuple(
        Linear(read.take(f"outs.{k}.weight", size, size), invariant=invariant)
        for k in range(count if read.config.get("outs") else 0)
    )
    small = [bias] if read.ids is None else [bias, read.ids]
    own = sum(part.numel() * part.element_size() for part in small)
    # a head proposes from the head's rows alone: the embedding is not held
    held_bytes = mix.bytes + sum(out.bytes for out in outs) + own + rows.head_bytes
    return MedusaHeads(mix, bias, rows.head, read.ids, held_bytes, outs)
