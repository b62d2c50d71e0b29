"""A draft of this engine as a transformers model, to draft for ``generate(assistant_model=…)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gatekeeper_adapters.engines.reference.drafter import head_rows, read_drafter
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["assistant_model"]


class _TrimmedHead(torch.nn.Module):
    """The draft's own few rows; every other token gets the least logit there is."""

    def __init__(self, rows: torch.Tensor, ids: torch.Tensor, vocabulary: int) -> None:
        super().__init__()
        self._rows, self._ids, self._vocabulary = rows, ids, vocabulary

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        known = linear(states, self._rows)
        least = torch.finfo(known.dtype).min
        wide = known.new_full((*known.shape[:-1], self._vocabulary), least)
        wide[..., self._ids] = known
        return wide


def assistant_model(folder: Path, target: Path, *, dtype: torch.dtype, window: int | None) -> Any:  # noqa: ANN401 - transformers is untyped
    """The draft model of ``folder``, the same weights and vocabulary, drafting ``window`` tokens.

    ``num_assistant_tokens`` given to ``generate`` is ignored: it is read from the assistant's own
    generation config. The window is held constant there, as it is here; None leaves the library's
    own choice.
    """
    drafter = read_drafter(folder, dtype=dtype, device="cpu")
    tensors = dict(drafter.tensors)
    if drafter.config.get("shared_rows"):
        embed, rows = head_rows(target, drafter.ids, dtype=dtype, device="cpu")
        tensors["model.embed_tokens.weight"] = embed
    else:
        rows = tensors.pop("lm_head.weight")
    config = LlamaConfig.from_dict({**drafter.config, "tie_word_embeddings": False})
    model = LlamaForCausalLM(config).to(dtype)
    model.model.load_state_dict(
        {name.removeprefix("model."): value for name, value in tensors.items()}
    )
    if drafter.ids is None:
        model.lm_head.weight.data = rows
    else:
        model.lm_head = _TrimmedHead(rows, drafter.ids, config.vocab_size)
    model.eval()
    if window is not None:
        settings = model.generation_config
        settings.num_assistant_tokens = window
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
    return model
