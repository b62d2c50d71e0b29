"""One Llama block that learns: the arithmetic of ``model.LlamaDecoder`` on one whole text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from gatekeeper_adapters.engines.reference.model import apply_rope, rope_tables

if TYPE_CHECKING:
    from torch import Tensor

    from gatekeeper_adapters.engines.reference.model import LlamaConfig

__all__ = ["LlamaBlock", "Memory"]

Memory = tuple[tuple["Tensor", "Tensor"], ...]
"""Keys and values [heads, n, d]: first those of the text, then those of each drafted depth."""


class LlamaBlock(nn.Module):  # type: ignore[misc] # torch is not followed, see pyproject
    """Pre-norm attention and gated MLP; parameters carry the names of Llama files."""

    def __init__(self, config: LlamaConfig, intermediate: int) -> None:
        super().__init__()
        c, hidden = config, config.hidden
        self.config = config
        self.input_layernorm = nn.RMSNorm(hidden, c.eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, c.eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(hidden, c.heads * c.head_dim, bias=False),
                "k_proj": nn.Linear(hidden, c.kv_heads * c.head_dim, bias=False),
                "v_proj": nn.Linear(hidden, c.kv_heads * c.head_dim, bias=False),
                "o_proj": nn.Linear(c.heads * c.head_dim, hidden, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, intermediate, bias=False),
                "up_proj": nn.Linear(hidden, intermediate, bias=False),
                "down_proj": nn.Linear(intermediate, hidden, bias=False),
            }
        )

    def forward(
        self, x: Tensor, place: int, *, asked: int = 0, memory: Memory = ()
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Rows ``x`` [n, H] at positions from ``place`` on; returns rows from ``asked`` on, and (K, V).

        Without ``memory`` the rows are a text. With it row r is drafted at depth d = 1 + the number
        of memories: it sees the text up to d − 1 rows before it, and one row of its own branch at
        every depth, the last being itself.
        """
        x, own = self.attended(x, place, asked=asked, memory=memory)
        return x + self.mlp["down_proj"](self.activations(x)), own

    def activations(self, x: Tensor) -> Tensor:
        """What the MLP's last matrix reads, for rows ``x`` after attention."""
        inner = self.post_attention_layernorm(x)
        gated: Tensor = silu(self.mlp["gate_proj"](inner)) * self.mlp["up_proj"](inner)
        return gated

    def attended(
        self, x: Tensor, place: int, *, asked: int = 0, memory: Memory = ()
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The first half of ``forward``: rows after attention, and (K, V)."""
        c = self.config
        count = x.shape[0]
        normed = self.input_layernorm(x)
        cos, sin = _turns(c, place + count)
        cos, sin = cos[place:], sin[place:]
        q = self.self_attn["q_proj"](normed[asked:]).view(count - asked, c.heads, c.head_dim)
        k = self.self_attn["k_proj"](normed).view(count, c.kv_heads, c.head_dim)
        v = self.self_attn["v_proj"](normed).view(count, c.kv_heads, c.head_dim)
        q = apply_rope(q, cos[asked:], sin[asked:]).transpose(0, 1)
        keys, values = (
            part.transpose(0, 1).repeat_interleave(c.heads // c.kv_heads, dim=0)
            for part in (apply_rope(k, cos, sin), v)
        )
        if memory:
            mixed = _branch_attention(q, (*memory, (keys, values)), place)
        else:
            seen = torch.ones(count - asked, count, dtype=torch.bool).tril(asked)
            mixed = scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return x[asked:] + self.self_attn["o_proj"](mixed.transpose(0, 1).flatten(1)), (
            keys,
            values,
        )


def _branch_attention(q: Tensor, memory: Memory, place: int) -> Tensor:
    """Attention of drafted rows: the text's keys by a shifted causal mask, one key of each depth."""
    (text_keys, text_values), *drafted = memory
    count, depth = q.shape[1], len(memory)
    scale = q.shape[-1] ** -0.5
    # row m stands at place + m and may see text rows (which start at position 1) up to place + m − d + 1
    last = torch.arange(count).unsqueeze(1) + place - depth
    seen = torch.arange(text_keys.shape[1]) <= last
    scores = [(q @ text_keys.transpose(1, 2)).masked_fill(~seen, float("-inf"))]
    scores += [(q * keys[:, :count]).sum(-1, keepdim=True) for keys, _ in drafted]
    weights = (torch.cat(scores, dim=-1) * scale).softmax(-1)
    mixed: Tensor = weights[..., : text_keys.shape[1]] @ text_values
    for number, (_, values) in enumerate(drafted):
        column = text_keys.shape[1] + number
        mixed = mixed + weights[..., column : column + 1] * values[:, :count]
    return mixed


def _turns(config: LlamaConfig, until: int) -> tuple[Tensor, Tensor]:
    return rope_tables(config.head_dim, until, config.theta, dtype=torch.float32, device="cpu")
