"""Tiny random models in the folder layout of prepared models; a second of work, no download."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def write_tokenizer(folder: Path, vocab: int) -> None:
    """One word per id: ``t0 t1 …``."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_tiny_llama(folder: Path, *, vocab: int = 97, seed: int = 0, **changes: Any) -> Path:
    """A random Llama whose logits are spread enough that greedy text has no near ties."""
    from safetensors.numpy import save_file

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        **SHAPE,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **changes,
    }
    rng = np.random.default_rng(seed)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(rows: int, columns: int) -> Any:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def ones() -> Any:
        return rng.uniform(0.8, 1.2, hidden).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(vocab, hidden) * 2.0,
        "model.norm.weight": ones(),
    }
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        tensors |= {
            f"{p}input_layernorm.weight": ones(),
            f"{p}post_attention_layernorm.weight": ones(),
            f"{p}self_attn.q_proj.weight": matrix(query, hidden),
            f"{p}self_attn.k_proj.weight": matrix(kv, hidden),
            f"{p}self_attn.v_proj.weight": matrix(kv, hidden),
            f"{p}self_attn.o_proj.weight": matrix(hidden, query),
            f"{p}mlp.gate_proj.weight": matrix(inner, hidden),
            f"{p}mlp.up_proj.weight": matrix(inner, hidden),
            f"{p}mlp.down_proj.weight": matrix(hidden, inner),
        }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(vocab, hidden)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder, vocab)
    return folder
