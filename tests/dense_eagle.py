"""EAGLE's drafter written as plainly as possible: one sequence, no cache, every row anew.

Independent of the package: it reads the file and follows the formula.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["DenseEagle"]


class DenseEagle:
    """The drafter of a folder, over the embedding and head of its target."""

    def __init__(self, folder: Path, target: Path) -> None:
        from safetensors.torch import load_file

        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")
        of_target = load_file(target / "model.safetensors")
        self.embed = of_target["model.embed_tokens.weight"]
        head = of_target.get("lm_head.weight", self.embed)
        self.ids = self.tensors.get("d2t", torch.arange(len(head)))
        self.head = head[self.ids]

    def read(self, tokens: Sequence[int], states: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, rows] and guessed states [n, H] for the pairs (token at i, state of i − 1).

        ``tokens`` are those of positions 1 to n, ``states`` [n, H] of positions 0 to n − 1.
        """
        w, c = self.tensors, self.config
        layer = "model.layers.0."
        words = self._norm(self.embed[torch.tensor(list(tokens))]) * w["norm_embed.weight"]
        x = torch.cat((words, self._norm(states) * w["norm_state.weight"]), dim=1)
        x = x @ w["fc.weight"].T
        x = x + self._attention(self._norm(x) * w[f"{layer}input_layernorm.weight"])
        y = self._norm(x) * w[f"{layer}post_attention_layernorm.weight"]
        gate, up = (y @ w[f"{layer}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ w[f"{layer}mlp.down_proj.weight"].T
        assert c["rope_parameters"]["rope_type"] == "default"
        guessed = self._norm(x) * w["norm.weight"]
        return guessed @ self.head.T, guessed

    def after(self, text: Sequence[int], states: Tensor, path: Sequence[int]) -> Tensor:
        """Logits [rows] after ``text`` and a drafted ``path``; ``states`` of all the text but its end."""
        for end in range(len(text), len(text) + len(path) + 1):
            tokens = [*text, *path][:end]
            logits, guessed = self.read(tokens[1:], states)
            states = torch.cat((states, guessed[-1:]))
        return logits[-1]

    def _norm(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + self.config["rms_norm_eps"]).sqrt()

    def _attention(self, x: Tensor) -> Tensor:
        w, c = self.tensors, self.config
        heads, kv, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        n, prefix = len(x), "model.layers.0.self_attn."
        q, k, v = (
            (x @ w[f"{prefix}{name}_proj.weight"].T).view(n, count, size)
            for name, count in (("q", heads), ("k", kv), ("v", kv))
        )
        theta = c["rope_parameters"]["rope_theta"]
        place = torch.arange(1, n + 1)  # the first pair belongs to position 1
        angle = place[:, None] / theta ** (torch.arange(0, size, 2) / size)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        q, k = (self._rotated(each, turn) for each in (q, k))
        out = torch.zeros_like(q)
        for head in range(heads):
            of = head // (heads // kv)
            for row in range(n):
                weight = torch.softmax(k[: row + 1, of] @ q[row, head] / size**0.5, dim=0)
                out[row, head] = weight @ v[: row + 1, of]
        mixed: Tensor = out.reshape(n, heads * size) @ w[f"{prefix}o_proj.weight"].T
        return mixed

    def _rotated(self, x: Tensor, turn: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        pairs = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat((pairs.real, pairs.imag), dim=-1)
