"""The drafter network of EAGLE (Li et al., arXiv:2401.15077): one decoder layer over the target's states.

A *pair* is the token at a position i and the state of position i − 1, the target's last hidden state
after its final norm; the network answers with its guess of state i, from which the target's own head
rows give logits for token i + 1. Drafting on takes the guess in place of the target's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import embedding, rms_norm, silu

from gatekeeper.errors import Incompatible
from gatekeeper_adapters.engines.reference.attention import attend, group_masks
from gatekeeper_adapters.engines.reference.cache import SlotCache
from gatekeeper_adapters.engines.reference.drafter import borrow, read_drafter
from gatekeeper_adapters.engines.reference.linear import Linear
from gatekeeper_adapters.engines.reference.model import (
    LlamaConfig,
    LlamaLayer,
    apply_rope,
    rope_tables,
)
from gatekeeper_adapters.engines.reference.packing import pack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.drafter import Drafter, Lender
    from gatekeeper_adapters.engines.reference.packing import PackedBatch, Segment

__all__ = ["EagleNet", "EagleWeights", "load_eagle"]

ARCHITECTURE = "GatekeeperEagle"


@dataclass(frozen=True)
class EagleWeights:
    """Everything a forward reads; ``ids`` int64 [head rows] target ids, or None for all of them.

    ``bytes`` counts what is held beyond the target's own storage.
    """

    config: LlamaConfig
    fc: Linear
    norm_embed: Tensor
    norm_state: Tensor
    layer: LlamaLayer
    norm: Tensor
    embed: Tensor
    head: Linear
    ids: Tensor | None
    bytes: int


class EagleNet:
    """Packed forward over pairs of many sequences.

    Row r of a slot's cache belongs to the pair of token r + 1, for position 0 has no state before it;
    its rotary position is r + 1. A row whose output nobody wants only leaves keys and values: in a
    single layer nothing else of it is ever read.
    """

    def __init__(
        self, weights: EagleWeights, *, slots: int, positions: int, aligned: bool = False
    ) -> None:
        c = weights.config
        self.weights = weights
        self.vocab_size = c.vocab_size
        self.hidden = c.hidden
        self.head_rows = c.head_rows
        self.ids = weights.ids
        self.dtype = weights.embed.dtype
        self.device = str(weights.embed.device)
        self.weight_bytes = weights.bytes
        self.cache = SlotCache(
            layers=1,
            slots=slots,
            positions=positions,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            dtype=self.dtype,
            device=self.device,
            aligned=aligned,
        )
        self._cos, self._sin = rope_tables(
            c.head_dim, positions + 1, c.theta, dtype=self.dtype, device=self.device
        )

    def pack(self, segments: Sequence[Segment]) -> PackedBatch:
        """Pack pairs; ``Segment.start`` is the cache row of the first one."""
        return pack(segments, self.cache, wanted_only=True)

    def forward(self, batch: PackedBatch, states: Tensor) -> tuple[Tensor, Tensor]:
        """Cache the pairs of ``batch.tokens`` and ``states`` [N, H]; of the R wanted rows return
        float32 logits [R, head rows] of the next token, and the guessed states [R, H].
        """  # noqa: D205 - one sentence
        w = self.weights
        c, layer = w.config, w.layer
        query_size, kv_size = c.heads * c.head_dim, c.kv_heads * c.head_dim
        size = (c.hidden,)
        words = rms_norm(embedding(batch.tokens, w.embed), size, w.norm_embed, c.eps)
        x = w.fc(torch.cat((words, rms_norm(states, size, w.norm_state, c.eps)), dim=-1))
        qkv = layer.qkv(rms_norm(x, size, layer.norm_in, c.eps))
        places = batch.positions + 1
        turned = apply_rope(
            qkv[:, : query_size + kv_size].view(-1, c.heads + c.kv_heads, c.head_dim),
            self._cos[places],
            self._sin[places],
        )
        values = qkv[:, query_size + kv_size :].view(-1, c.kv_heads, c.head_dim)
        self.cache.write(0, batch, turned[:, c.heads :], values)
        x, query = x[batch.rows], turned[batch.rows, : c.heads]
        if x.shape[0] == 0:
            return x.new_zeros(0, w.head.out_features, dtype=torch.float32), x
        masks = group_masks(batch, c.heads // c.kv_heads)
        mixed = attend(query, self.cache, 0, batch, masks=masks, scale=c.head_dim**-0.5)
        x = x + layer.out(mixed)
        gate, up = layer.gate_up(rms_norm(x, size, layer.norm_mlp, c.eps)).chunk(2, dim=-1)
        guessed = rms_norm(x + layer.down(silu(gate) * up), size, w.norm, c.eps)
        return w.head(guessed).float(), guessed


def load_eagle(
    folder: Path,
    lender: Lender,
    *,
    dtype: torch.dtype,
    device: str,
    slots: int,
    positions: int,
    invariant: bool = False,
) -> EagleNet:
    """Load a drafter's folder over the tables that its target lends.

    Raises:
        Incompatible: another architecture, a missing tensor, or shapes that do not fit the target.
    """
    read = read_drafter(folder, dtype=dtype, device=device)
    c = LlamaConfig.read(
        {**read.config, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    )
    if c is None or ARCHITECTURE not in read.config.get("architectures", ()):
        raise Incompatible(
            f"is not a {ARCHITECTURE} with plain rotary attention",
            field="proposer.source",
            value=str(read.config.get("architectures")),
            remedy="name a drafter trained for this kind of proposer",
        )
    lent = borrow(lender, read.config, read.ids, dtype=dtype, device=device, invariant=invariant)
    fc = Linear(read.take("fc.weight", c.hidden, 2 * c.hidden), invariant=invariant)
    layer = _layer(c, read, invariant=invariant)
    linears = (fc, layer.qkv, layer.out, layer.gate_up, layer.down)
    weights = EagleWeights(
        config=c,
        fc=fc,
        norm_embed=read.take("norm_embed.weight", c.hidden),
        norm_state=read.take("norm_state.weight", c.hidden),
        layer=layer,
        norm=read.take("norm.weight", c.hidden),
        embed=lent.embed,
        head=lent.head,
        ids=read.ids,
        bytes=sum(linear.bytes for linear in linears) + lent.embed_bytes + lent.head_bytes,
    )
    return EagleNet(weights, slots=slots, positions=positions, aligned=invariant)


def _layer(c: LlamaConfig, read: Drafter, *, invariant: bool) -> LlamaLayer:
    inner = int(read.config["intermediate_size"])
    query, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    prefix = "model.layers.0."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def linear(inputs: int, *outputs: tuple[str, int]) -> Linear:
        parts = [read.take(f"{name}.weight", rows, inputs) for name, rows in outputs]
        return Linear(parts[0] if len(parts) == 1 else torch.cat(parts), invariant=invariant)

    return LlamaLayer(
        norm_in=read.take(f"{prefix}input_layernorm.weight", c.hidden),
        qkv=linear(
            c.hidden,
            (f"{attention}q_proj", query),
            (f"{attention}k_proj", kv),
            (f"{attention}v_proj", kv),
        ),
        out=linear(query, (f"{attention}o_proj", c.hidden)),
        norm_mlp=read.take(f"{prefix}post_attention_layernorm.weight", c.hidden),
        gate_up=linear(c.hidden, (f"{mlp}gate_proj", inner), (f"{mlp}up_proj", inner)),
        down=linear(inner, (f"{mlp}down_proj", c.hidden)),
    )
