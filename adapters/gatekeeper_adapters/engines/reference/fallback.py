"""Any decoder-only transformers model over the slot cache, through ``AttentionInterface``.

The model's own code runs unchanged; only its attention function is ours (``slot``). transformers
builds no mask for an attention function it has no mask recipe for, so ours comes from the batch.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.nn import ModuleList
from transformers import AttentionInterface, AutoModelForCausalLM

from gatekeeper.errors import Incompatible
from gatekeeper_adapters.engines.reference.attention import attend, group_masks
from gatekeeper_adapters.engines.reference.cache import SlotCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor

    from gatekeeper_adapters.engines.reference.packing import PackedBatch

__all__ = ["SlotDecoder", "load_transformers", "ordinary_copy"]

ATTENTION = "slot"
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux")


class _Context:
    """What the attention function needs of the step, handed through as a keyword."""

    def __init__(self, cache: SlotCache, batch: PackedBatch, groups: int) -> None:
        self.cache = cache
        self.batch = batch
        self.masks = group_masks(batch, groups)


def _slot_attention(
    module: Any,  # noqa: ANN401 - transformers is untyped
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    scaling: float | None = None,
    _dropout: float = 0.0,
    *,
    slot_context: _Context,
    **extra: Any,  # noqa: ANN401 - each model passes its own
) -> tuple[Tensor, None]:
    for name in _UNSUPPORTED:
        if extra.get(name) is not None:
            raise Incompatible(
                "is not supported by the slot cache",
                field=name,
                value=extra[name],
                remedy="use a model with plain full attention",
            )
    layer, batch = int(module.layer_idx), slot_context.batch
    slot_context.cache.write(layer, batch, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = query[0].transpose(0, 1).contiguous()
    mixed = attend(rows, slot_context.cache, layer, batch, masks=slot_context.masks, scale=scale)
    return mixed.view(1, rows.shape[0], rows.shape[1], rows.shape[2]), None


class SlotDecoder:
    """The engine's decoder around a transformers model loaded with ``load_transformers``."""

    def __init__(self, model: Any, *, slots: int, positions: int) -> None:  # noqa: ANN401 - untyped
        config = model.config
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        self._model = model
        self._groups = heads // kv_heads
        self.vocab_size = int(config.vocab_size)
        self.layers = int(config.num_hidden_layers)
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.device = str(model.device)
        self.cache = SlotCache(
            layers=self.layers,
            slots=slots,
            positions=positions,
            kv_heads=kv_heads,
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            dtype=model.dtype,
            device=self.device,
        )

    def forward(self, batch: PackedBatch) -> Tensor:
        """Cache the batch's keys and values; return float32 logits of its wanted rows."""
        return self._run(self._model, batch)

    def forward_with_states(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """``forward``, and every row's last hidden state; see ``decoder.Decoder``."""
        out = self._call(self._model, batch, output_hidden_states=True)
        return out.logits[0].float(), out.hidden_states[-1][0]

    def partial(self, layers: Sequence[int]) -> Callable[[PackedBatch], Tensor]:
        """``forward`` through ``layers`` alone; see ``decoder.Decoder``."""
        model = _with_layers(self._model, layers, self.layers)
        return lambda batch: self._run(model, batch)

    def _run(self, model: Any, batch: PackedBatch) -> Tensor:  # noqa: ANN401 - untyped
        logits: Tensor = self._call(model, batch).logits[0].float()
        return logits

    def _call(self, model: Any, batch: PackedBatch, **wanted: Any) -> Any:  # noqa: ANN401 - untyped
        return model(
            input_ids=batch.tokens.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=batch.rows,
            slot_context=_Context(self.cache, batch, self._groups),
            **wanted,
        )


def load_transformers(folder: Path, *, dtype: torch.dtype, device: str) -> Any:  # noqa: ANN401
    """Load a folder with the slot attention.

    Raises:
        Incompatible: the model mixes in layers other than full attention.
    """
    AttentionInterface.register(ATTENTION, _slot_attention)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=ATTENTION, local_files_only=True
    )
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise Incompatible(
            "has layers other than full attention",
            field="architecture",
            value=sorted(kinds),
            remedy="use a model with plain full attention",
        )
    return model.to(device).eval().requires_grad_(requires_grad=False)


def ordinary_copy(model: Any) -> Any:  # noqa: ANN401 - transformers is untyped
    """The same model with transformers' own attention; parameters are shared, not copied."""
    twin = _sharing(model)
    twin.set_attn_implementation("sdpa")
    return twin


def _sharing(model: Any) -> Any:  # noqa: ANN401 - transformers is untyped
    memo = {id(parameter): parameter for parameter in model.parameters()}
    return copy.deepcopy(model, memo)


def _with_layers(model: Any, kept: Sequence[int], count: int) -> Any:  # noqa: ANN401 - untyped
    """The same model with some of its layers; each keeps its number, hence its place in the cache."""
    lists = [
        name
        for name, child in model.base_model.named_children()
        if isinstance(child, ModuleList) and len(child) == count
    ]
    if len(lists) != 1:
        raise Incompatible(
            "keeps its layers where this engine does not find them, so none can be left out",
            field="proposer.kind",
            value="self_speculation",
            remedy="use ngram or draft_lm for this model",
        )
    (name,) = lists
    twin = _sharing(model)
    layers = getattr(twin.base_model, name)
    setattr(twin.base_model, name, ModuleList([layers[index] for index in kept]))
    return twin
