"""Own minimal forward for the Llama family over the slot cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import embedding, rms_norm, silu

from gatekeeper.errors import Incompatible
from gatekeeper_adapters.engines.reference.attention import attend, group_masks
from gatekeeper_adapters.engines.reference.cache import SlotCache
from gatekeeper_adapters.engines.reference.drafter import borrow, read_tensors
from gatekeeper_adapters.engines.reference.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.drafter import Lender
    from gatekeeper_adapters.engines.reference.packing import PackedBatch

__all__ = ["LlamaConfig", "LlamaDecoder", "LlamaWeights", "apply_rope", "load_llama", "rope_tables"]


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of a Llama-family decoder, read from ``config.json``."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    head_rows: int
    max_positions: int
    eps: float
    theta: float
    tied: bool

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> LlamaConfig | None:
        """Parse; None where this forward does not cover the model (use the fallback then)."""
        rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
        covered = (
            "LlamaForCausalLM" in document.get("architectures", ())
            and document.get("hidden_act", "silu") == "silu"
            and not document.get("attention_bias", False)
            and not document.get("mlp_bias", False)
            and rope.get("rope_type", "default") == "default"
        )
        if not covered:
            return None
        heads = int(document["num_attention_heads"])
        return cls(
            hidden=int(document["hidden_size"]),
            layers=int(document["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(document.get("num_key_value_heads") or heads),
            head_dim=int(document.get("head_dim") or document["hidden_size"] // heads),
            vocab_size=int(document["vocab_size"]),
            head_rows=int(document.get("draft_vocab_size") or document["vocab_size"]),
            max_positions=int(document["max_position_embeddings"]),
            eps=float(document.get("rms_norm_eps", 1e-6)),
            theta=float(rope.get("rope_theta") or document.get("rope_theta") or 10_000.0),
            tied=bool(document.get("tie_word_embeddings", False)),
        )


@dataclass(frozen=True)
class LlamaLayer:
    """Weights of one block; q, k, v and gate, up are fused by rows."""

    norm_in: Tensor
    qkv: Linear
    out: Linear
    norm_mlp: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class LlamaWeights:
    """Everything a forward reads; ``token_map`` int64 [head rows] target ids, or None.

    ``lent`` bytes of embedding and head belong to the target that a drafter shares them with.
    """

    config: LlamaConfig
    embed: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head: Linear
    token_map: Tensor | None
    lent: int = 0

    @property
    def bytes(self) -> int:
        """Bytes held, with every layout kept for speed, less what is lent."""
        parts = sum(
            linear.bytes
            for layer in self.layers
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)
        )
        shared = self.config.tied and self.head.keeps_original
        embed = 0 if shared else self.embed.numel() * self.embed.element_size()
        return int(parts + self.head.bytes + embed - self.lent)

    @property
    def device(self) -> str:
        """Device that holds the weights."""
        return str(self.embed.device)


def load_llama(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: str,
    invariant: bool = False,
    lender: Lender | None = None,
) -> LlamaWeights | None:
    """Load a folder of safetensors; None where the own forward does not cover the model.

    ``lender`` is the target whose embedding and head rows a drafter with ``shared_rows`` uses.

    Raises:
        Incompatible: a tensor is missing or has the wrong shape, or tables do not fit the lender's.
    """
    document = json.loads((folder / "config.json").read_text())
    config = LlamaConfig.read(document)
    if config is None:
        return None
    raw = read_tensors(folder)

    def take(name: str) -> Tensor:
        if name not in raw:
            raise Incompatible(
                f"lacks the tensor {name}",
                field="files",
                value=str(folder.name),
                remedy="prepare the model again",
            )
        # a copy, for what is read lies in the mapped file, and one tensor would keep all of it
        return raw.pop(name).to(device=device, dtype=dtype, copy=True)

    def linear(*names: str) -> Linear:
        parts = [take(name) for name in names]
        return Linear(parts[0] if len(parts) == 1 else torch.cat(parts), invariant=invariant)

    layers = []
    for index in range(config.layers):
        p = f"model.layers.{index}."
        a, m = f"{p}self_attn.", f"{p}mlp."
        layers.append(
            LlamaLayer(
                take(f"{p}input_layernorm.weight"),
                linear(f"{a}q_proj.weight", f"{a}k_proj.weight", f"{a}v_proj.weight"),
                linear(f"{a}o_proj.weight"),
                take(f"{p}post_attention_layernorm.weight"),
                linear(f"{m}gate_proj.weight", f"{m}up_proj.weight"),
                linear(f"{m}down_proj.weight"),
            )
        )
    ids = raw["d2t"].to(device=device, dtype=torch.int64, copy=True) if "d2t" in raw else None
    lent = 0
    if document.get("shared_rows"):
        if lender is None:
            raise Incompatible(
                "shares embedding and head with its target, so it is no model by itself",
                field="target.source",
                value=folder.name,
                remedy="use it as the proposer of that target",
            )
        config = replace(config, tied=False)
        tables = borrow(lender, document, ids, dtype=dtype, device=device, invariant=invariant)
        embed, head = tables.embed, tables.head
        whole = embed.numel() * embed.element_size() + head.bytes
        lent = whole - tables.embed_bytes - tables.head_bytes
    else:
        embed = take("model.embed_tokens.weight")
        head = Linear(embed, invariant=invariant) if config.tied else linear("lm_head.weight")
    if (embed.shape[0], head.out_features) != (config.vocab_size, config.head_rows):
        raise Incompatible(
            f"has {embed.shape[0]} embeddings and {head.out_features} head rows",
            field="vocab_size",
            value=config.vocab_size,
            remedy="prepare the model again",
        )
    norm = take("model.norm.weight")
    return LlamaWeights(config, embed, tuple(layers), norm, head, ids, lent)


class LlamaDecoder:
    """Packed forward: tokens of many sequences in, logits of the wanted rows out."""

    def __init__(
        self, weights: LlamaWeights, *, slots: int, positions: int, aligned: bool = False
    ) -> None:
        c = weights.config
        self.weights = weights
        self.vocab_size = c.vocab_size
        self.layers = c.layers
        self.weight_bytes = weights.bytes
        self.device = weights.device
        self.cache = SlotCache(
            layers=c.layers,
            slots=slots,
            positions=positions,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            dtype=weights.embed.dtype,
            device=weights.device,
            aligned=aligned,
        )
        self._cos, self._sin = rope_tables(
            c.head_dim, positions, c.theta, dtype=weights.embed.dtype, device=weights.device
        )

    def forward(self, batch: PackedBatch) -> Tensor:
        """Write the batch's keys and values to the cache; return float32 logits [R, head rows]."""
        return self._logits(self._run(batch, range(self.layers))[batch.rows])

    def forward_with_states(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """``forward``, and every row's last hidden state; see ``decoder.Decoder``."""
        hidden = self._run(batch, range(self.layers))
        return self._logits(hidden[batch.rows]), self._norm(hidden)

    def partial(self, layers: Sequence[int]) -> Callable[[PackedBatch], Tensor]:
        """``forward`` through ``layers`` alone; see ``decoder.Decoder``."""
        return lambda batch: self._logits(self._run(batch, layers)[batch.rows])

    def _logits(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:
            return x.new_zeros(0, self.weights.config.head_rows, dtype=torch.float32)
        logits: Tensor = self.weights.head(self._norm(x)).float()
        return logits

    def _norm(self, x: Tensor) -> Tensor:
        c = self.weights.config
        return rms_norm(x, (c.hidden,), self.weights.norm, c.eps)

    def _run(self, batch: PackedBatch, layers: Sequence[int]) -> Tensor:
        """Hidden states [N, H] before the final norm; keys and values are cached."""
        w = self.weights
        c = w.config
        query_size, kv_size = c.heads * c.head_dim, c.kv_heads * c.head_dim
        scale, size = c.head_dim**-0.5, (c.hidden,)
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        masks = group_masks(batch, c.heads // c.kv_heads)
        x = embedding(batch.tokens, w.embed)
        for index in layers:
            layer = w.layers[index]
            qkv = layer.qkv(rms_norm(x, size, layer.norm_in, c.eps))
            turned = apply_rope(
                qkv[:, : query_size + kv_size].view(-1, c.heads + c.kv_heads, c.head_dim), cos, sin
            )
            values = qkv[:, query_size + kv_size :].view(-1, c.kv_heads, c.head_dim)
            self.cache.write(index, batch, turned[:, c.heads :], values)
            mixed = attend(turned[:, : c.heads], self.cache, index, batch, masks=masks, scale=scale)
            x = x + layer.out(mixed)
            gate, up = layer.gate_up(rms_norm(x, size, layer.norm_mlp, c.eps)).chunk(2, dim=-1)
            x = x + layer.down(silu(gate) * up)
        return x


def rope_tables(
    size: int, positions: int, theta: float, *, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sin [positions, 1, size] of rotary embedding (Su et al., arXiv:2104.09864)."""
    inverse = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size)
    angle = torch.outer(torch.arange(positions).float(), inverse)
    cos = torch.cat((angle.cos(), angle.cos()), dim=-1)
    sin = torch.cat((-angle.sin(), angle.sin()), dim=-1)
    return (
        cos.unsqueeze(1).to(dtype=dtype, device=device),
        sin.unsqueeze(1).to(dtype=dtype, device=device),
    )


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [N, heads, d] by tables gathered at its positions [N, 1, d]."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
