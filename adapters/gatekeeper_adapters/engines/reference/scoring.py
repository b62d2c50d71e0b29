"""The independent scorer: the target's opinion of given text, by teacher forcing.

It shares weights and processors with the engine, and nothing else: no slot cache, no packing, no
masks, no positions by hand. One dense causal pass over prompt and output per request; the head runs
on the scored rows only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from gatekeeper.errors import InputError
from gatekeeper.protocols import Scored
from gatekeeper_adapters.engines.reference.sampling import adjust, distribution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper.core.decoding import SamplingSettings
    from gatekeeper_adapters.engines.reference.model import LlamaWeights

__all__ = ["DenseLlama", "DenseModel", "Scorer", "TransformersModel"]


class DenseModel(Protocol):
    """An ordinary causal forward."""

    vocab_size: int
    max_positions: int

    def logits(self, tokens: Sequence[int], last: int) -> Tensor:
        """float32 [last, V]: logits of the last rows of one text, from nothing but the text."""
        ...


class DenseLlama:
    """Plain Llama attention over one whole text, written as in the paper's reference code."""

    def __init__(self, weights: LlamaWeights) -> None:
        self._w = weights
        self.vocab_size = weights.config.vocab_size
        self.max_positions = weights.config.max_positions

    def logits(self, tokens: Sequence[int], last: int) -> Tensor:
        """Run the whole text; return the last rows' logits."""
        w, c = self._w, self._w.config
        x = embedding(torch.tensor(tokens, device=w.embed.device), w.embed)
        count = x.shape[0]
        rotation = self._rotation(count)
        for layer in w.layers:
            qkv = layer.qkv(rms_norm(x, (c.hidden,), layer.norm_in, c.eps))
            heads = qkv.view(count, c.heads + 2 * c.kv_heads, c.head_dim).transpose(0, 1)
            q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads))
            mixed = scaled_dot_product_attention(
                _rotate(q, rotation).unsqueeze(0),
                _rotate(k, rotation).unsqueeze(0),
                v.unsqueeze(0),
                is_causal=True,
                enable_gqa=True,
            )
            x = x + layer.out(mixed[0].transpose(0, 1).reshape(count, -1))
            gate, up = layer.gate_up(rms_norm(x, (c.hidden,), layer.norm_mlp, c.eps)).chunk(2, -1)
            x = x + layer.down(silu(gate) * up)
        logits: Tensor = w.head(rms_norm(x[-last:], (c.hidden,), w.norm, c.eps)).float()
        return logits

    def _rotation(self, count: int) -> Tensor:
        """Unit complex numbers [count, d/2]: rotary embedding as a rotation of the plane."""
        c = self._w.config
        exponent = torch.arange(0, c.head_dim, 2, device=self._w.embed.device).float() / c.head_dim
        angle = torch.outer(
            torch.arange(count, device=exponent.device).float(), 1.0 / c.theta**exponent
        )
        return torch.polar(torch.ones_like(angle), angle)


class TransformersModel:
    """transformers' own model class with its own attention, for models of any family."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - transformers is untyped
        self._model = model
        self.vocab_size = int(model.config.vocab_size)
        self.max_positions = int(model.config.max_position_embeddings)

    def logits(self, tokens: Sequence[int], last: int) -> Tensor:
        """Run the whole text; return the last rows' logits."""
        ids = torch.tensor([list(tokens)], device=self._model.device)
        out = self._model(input_ids=ids, use_cache=False, logits_to_keep=last)
        logits: Tensor = out.logits[0].float()
        return logits


class Scorer:
    """Scores output tokens under the processors of a request."""

    def __init__(self, model: DenseModel) -> None:
        self._model = model

    def score(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        sampling: SamplingSettings,
        *,
        stop: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> Scored:
        """``p`` and ``deficit`` of every output token; see ``gatekeeper.protocols.Scored``.

        Raises:
            InputError: nothing to score, an id outside the vocabulary, or too long a text.
        """
        text = [*prompt, *tokens]
        self._check(prompt, tokens, text)
        # row i of the last n + 1, without the very last, is the opinion before output token i
        logits = self._model.logits(text[:-1], len(tokens))
        adjusted = adjust(
            logits,
            sampling,
            prompt,
            tokens,
            banned=stop,
            banned_rows=min(min_tokens, len(tokens)),
        )
        chosen = torch.tensor(list(tokens), device=adjusted.device).unsqueeze(1)
        deficit = adjusted.max(dim=-1).values - adjusted.gather(1, chosen).squeeze(1)
        p = distribution(adjusted, sampling)
        return Scored(_float32(p), _float32(deficit))

    def _check(self, prompt: Sequence[int], tokens: Sequence[int], text: Sequence[int]) -> None:
        limit, vocab = self._model.max_positions, self._model.vocab_size
        if not prompt or not tokens:
            raise InputError(
                "is empty",
                field="prompt" if not prompt else "tokens",
                remedy="score at least one output token after at least one prompt token",
            )
        if len(text) > limit + 1 or not all(0 <= token < vocab for token in text):
            raise InputError(
                "does not fit the model",
                field="tokens",
                value=len(text),
                remedy=f"use at most {limit} tokens with ids below {vocab}",
            )


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate ``x`` [heads, n, d]: element i pairs with i + d/2."""
    half = x.shape[-1] // 2
    wide = x.float()
    turned = torch.complex(wide[..., :half], wide[..., half:]) * rotation
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


def _float32(values: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    array: np.ndarray[Any, np.dtype[np.float32]] = (
        values.cpu().numpy().astype(np.float32, copy=False)
    )
    return array
