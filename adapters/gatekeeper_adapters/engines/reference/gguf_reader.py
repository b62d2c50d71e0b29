"""Read a GGUF file of the Llama family into Hugging Face names, shapes and configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFReader, dequantize

from gatekeeper.errors import Incompatible

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["read_gguf"]

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Return (config.json document, float32 tensors by Hugging Face name).

    Raises:
        Incompatible: another architecture, or a tensor we do not know.
    """
    reader = GGUFReader(path)
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise Incompatible(
            "is not of the Llama family",
            field="source",
            value=f"{path.name} ({architecture})",
            remedy="use a safetensors folder for this architecture",
        )
    heads = int(_field(reader, "llama.attention.head_count"))
    kv_heads = int(_field(reader, "llama.attention.head_count_kv", heads))
    tensors: dict[str, NDArray[np.float32]] = {}
    for tensor in reader.tensors:
        name = _rename(tensor.name, path)
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if ".q_proj." in name or ".k_proj." in name:
            value = _interleaved_to_halves(value, heads if ".q_proj." in name else kv_heads)
        tensors[name] = np.ascontiguousarray(value)
    vocab, hidden = tensors["model.embed_tokens.weight"].shape
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": int(_field(reader, "llama.feed_forward_length")),
        "num_hidden_layers": int(_field(reader, "llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": int(_field(reader, "llama.context_length")),
        "rms_norm_eps": round(float(_field(reader, "llama.attention.layer_norm_rms_epsilon")), 12),
        "rope_theta": float(_field(reader, "llama.rope.freq_base", 10_000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": int(_field(reader, "tokenizer.ggml.bos_token_id", 1)),
        "eos_token_id": int(_field(reader, "tokenizer.ggml.eos_token_id", 2)),
        "pad_token_id": int(_field(reader, "tokenizer.ggml.padding_token_id", 2)),
        "dtype": "float32",
    }
    return config, tensors


def _field(reader: Any, name: str, default: object = None) -> Any:  # noqa: ANN401 - GGUF values
    field = reader.get_field(name)
    return default if field is None else field.contents()


def _rename(name: str, path: Path) -> str:
    if name in _TOP:
        return _TOP[name]
    prefix, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    part = rest.removesuffix(".weight")
    if prefix != "blk" or part not in _BLOCK or part == rest:
        raise Incompatible(
            f"has a tensor we do not know: {name}",
            field="source",
            value=path.name,
            remedy="use a safetensors folder for this model",
        )
    return f"model.layers.{layer}.{_BLOCK[part]}.weight"


def _interleaved_to_halves(value: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    # GGUF stores rotary pairs next to each other; Hugging Face keeps them half a head apart
    out, inner = value.shape
    return value.reshape(heads, out // heads // 2, 2, inner).swapaxes(1, 2).reshape(out, inner)
