"""Write a trained drafter: config with its provenance, and few weights of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.training.networks import Network

__all__ = ["INT8", "as_read", "drafter_config", "stored_tensors", "write_folder"]

ARCHITECTURES = {
    "draft_lm": "LlamaForCausalLM",
    "medusa": "GatekeeperMedusa",
    "eagle": "GatekeeperEagle",
}
_LAYER = (
    *("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("rms_norm_eps", "rope_parameters", "rope_theta", "rope_scaling"),
)
_LLAMA = ("hidden_act", "attention_bias", "mlp_bias", "model_type", "bos_token_id", "eos_token_id")

INT8 = ("draft_lm", "medusa")
"""Kinds whose matrices are stored as int8: that costs one or two thousandths of acceptance."""

LARGEST_BYTE = 127


def drafter_config(
    kind: str,
    target: Mapping[str, Any],
    ids: Tensor,
    *,
    tokenizer: str,
    size: int,
    neurons: int | None = None,
) -> dict[str, Any]:
    """The config of a drafter of ``size`` layers (draft_lm) or heads (medusa), without provenance.

    ``neurons`` of each of its MLPs, where they are not as many as the target's.
    """
    names = {"draft_lm": (*_LAYER, *_LLAMA), "eagle": _LAYER}.get(kind, ())
    thin = {} if neurons is None else {"intermediate_size": neurons}
    extra: dict[str, Any] = {
        "draft_lm": {"num_hidden_layers": size, **thin},
        "medusa": {"heads": size, "outs": True},
    }.get(kind, {})
    return {
        "architectures": [ARCHITECTURES[kind]],
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": len(ids),
        "token_map": hashlib.sha256(ids.numpy().astype("<i8").tobytes()).hexdigest(),
        "shared_rows": True,
        "tie_word_embeddings": False,
        "tokenizer": tokenizer,
        "max_position_embeddings": target["max_position_embeddings"],
        "torch_dtype": "bfloat16",
        **{name: target[name] for name in names if name in target},
        **extra,
    }


def stored_tensors(network: Network, ids: Tensor, *, int8: bool) -> dict[str, Tensor]:
    """The network's tensors as they are stored: bf16, or matrices as int8 with a scale per row."""
    stored: dict[str, Tensor] = {"d2t": ids.to(torch.int64)}
    for name, value in network.exported().items():
        if int8 and value.ndim == 2:  # noqa: PLR2004 - a matrix
            scale = value.abs().amax(dim=1).clamp_min(1e-12) / LARGEST_BYTE
            stored[name] = (value / scale.unsqueeze(1)).round().to(torch.int8)
            stored[f"{name}.scale"] = scale.float()
        else:
            stored[name] = value.to(torch.bfloat16)
    return stored


def as_read(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters float32 that a reader of the stored tensors gets."""
    scales = {name for name in stored if name.endswith(".scale")}
    return {
        name: value.float() * stored[f"{name}.scale"].unsqueeze(1)
        if f"{name}.scale" in scales
        else value.float()
        for name, value in stored.items()
        if name != "d2t" and name not in scales
    }


def write_folder(out: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors; ``out`` appears by one rename."""
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".drafter-", dir=out.parent))
    try:
        work.chmod(0o755)  # mkdtemp's folders are private
        contiguous = {name: value.contiguous() for name, value in tensors.items()}
        save_file(contiguous, work / "model.safetensors", metadata={"format": "pt"})
        (work / "model.safetensors").chmod(0o644)  # safetensors writes for the owner alone
        (work / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        os.rename(work, out)  # noqa: PTH104 - Path.rename replaces files, we want the error
    finally:
        shutil.rmtree(work, ignore_errors=True)
