"""Tiny drafters in the file format of trained ones; random, or built to be right."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "TRIMMED",
    "damp",
    "load_six_kinds",
    "sharpen",
    "write_relay",
    "write_tiny_eagle",
    "write_tiny_medusa",
]

TRIMMED = tuple(i for i in range(97) if i % 7)
"""Ids that a trimmed drafter can name, of a vocabulary of 97."""

LAYER = "model.layers.0."


def write_tiny_eagle(
    folder: Path, target: Path, *, ids: Sequence[int] | None = None, seed: int = 1, own: float = 0.3
) -> Path:
    """A feature drafter that leans on its token, with a random layer scaled by ``own``.

    Like any model's state its guess ends in the target's norm, so it is often right about a target
    whose layers are damped.
    """
    from safetensors.numpy import load_file

    config = _config(target)
    rng = np.random.default_rng(seed)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Any:
        return (rng.normal(0, columns**-0.5, (rows, columns)) * scale).astype(np.float32)

    fc = np.concatenate((np.eye(hidden), matrix(hidden, hidden, own)), axis=1)
    tensors = {
        "fc.weight": fc.astype(np.float32),
        "norm_embed.weight": rng.uniform(0.8, 1.2, hidden).astype(np.float32),
        "norm_state.weight": rng.uniform(0.8, 1.2, hidden).astype(np.float32),
        "norm.weight": load_file(target / "model.safetensors")["model.norm.weight"],
        f"{LAYER}input_layernorm.weight": np.ones(hidden, dtype=np.float32),
        f"{LAYER}post_attention_layernorm.weight": np.ones(hidden, dtype=np.float32),
        f"{LAYER}self_attn.q_proj.weight": matrix(query, hidden),
        f"{LAYER}self_attn.k_proj.weight": matrix(kv, hidden),
        f"{LAYER}self_attn.v_proj.weight": matrix(kv, hidden),
        f"{LAYER}self_attn.o_proj.weight": matrix(hidden, query, own),
        f"{LAYER}mlp.gate_proj.weight": matrix(inner, hidden),
        f"{LAYER}mlp.up_proj.weight": matrix(inner, hidden),
        f"{LAYER}mlp.down_proj.weight": matrix(hidden, inner, own),
    }
    return _write(folder, target, "GatekeeperEagle", tensors, ids)


def write_tiny_medusa(
    folder: Path, target: Path, *, heads: int = 3, ids: Sequence[int] | None = None, seed: int = 1
) -> Path:
    """Random heads."""
    hidden = _config(target)["hidden_size"]
    rng = np.random.default_rng(seed)
    tensors = {}
    for head in range(heads):
        weight = rng.normal(0, hidden**-0.5, (hidden, hidden))
        tensors[f"heads.{head}.weight"] = weight.astype(np.float32)
        tensors[f"heads.{head}.bias"] = rng.normal(0, 0.1, hidden).astype(np.float32)
    return _write(folder, target, "GatekeeperMedusa", tensors, ids, heads=heads)


def write_relay(root: Path, *, ids: Sequence[int] | None = None) -> tuple[Path, Path]:
    """A target, and the feature drafter that predicts its states exactly.

    The target's next token depends on its last two: one attention layer looks at the token before
    and turns its word (half a hidden state) into the other half. The drafter has the newest word
    from its token and must take the one before from the state handed to it: a state, or a token, of
    another position gives it the wrong context.
    """
    from safetensors.numpy import load_file, save_file

    target = write_tiny_llama(
        root / "target", num_hidden_layers=1, tie_word_embeddings=False, seed=6
    )
    tensors = load_file(target / "model.safetensors")
    rng = np.random.default_rng(7)
    words = rng.normal(size=(97, 15))
    embed = np.zeros((97, 32))
    embed[:, :15] = 4.0 * words / np.linalg.norm(words, axis=1, keepdims=True)
    embed[:, 15] = 4.0  # the same for all: what attention finds positions by
    turn = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    query, key, value, out = (np.zeros((n, 32)) for n in (32, 16, 16, 32))
    for place, frequency in enumerate((1.0, 0.1, 0.01)):  # of rotary pairs (place, place + 4)
        for head in range(4):
            query[8 * head + place, 15] = 10.0 * np.cos(frequency)
            query[8 * head + place + 4, 15] = -10.0 * np.sin(frequency)
        key[[place, 8 + place], 15] = 10.0
    value[:15, :15] = np.eye(15)
    out[16:, [*range(8), *range(16, 24)]] = turn
    ones = np.ones(32)
    changed = {
        "model.embed_tokens.weight": embed,
        "lm_head.weight": 1.5 * rng.normal(size=(97, 32)),
        "model.norm.weight": ones,
        f"{LAYER}input_layernorm.weight": ones,
        f"{LAYER}self_attn.q_proj.weight": query,
        f"{LAYER}self_attn.k_proj.weight": key,
        f"{LAYER}self_attn.v_proj.weight": value,
        f"{LAYER}self_attn.o_proj.weight": out,
        f"{LAYER}mlp.down_proj.weight": np.zeros((32, 48)),
    }
    tensors |= {name: array.astype(np.float32) for name, array in changed.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})

    draft = write_tiny_eagle(root / "eagle", target, ids=ids)
    tensors = load_file(draft / "model.safetensors")
    fc = np.zeros((32, 64))
    fc[:16, :16] = np.eye(16)
    fc[16:, 32:47] = turn[:, :15] * np.sqrt(48 / 32)  # the final norm divided by this
    tensors |= {name: ones.astype(np.float32) for name in tensors if tensors[name].shape == (32,)}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"{LAYER}{name}.weight"] *= np.float32(0)
    tensors["fc.weight"] = fc.astype(np.float32)
    save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
    return target, draft


def damp(folder: Path, factor: float, layers: Sequence[int] = (0, 1)) -> Path:
    """Scale what some layers of a target add, so that a drafter without them is often right."""
    names = ("self_attn.o_proj", "mlp.down_proj")
    scaled = [f"model.layers.{layer}.{name}.weight" for layer in layers for name in names]
    return _scale(folder, scaled, factor)


def sharpen(folder: Path, factor: float) -> Path:
    """Scale the logits of a target with a head of its own, so that it is surer of its tokens."""
    return _scale(folder, ["lm_head.weight"], factor)


def _scale(folder: Path, names: Sequence[str], factor: float) -> Path:
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in names:
        tensors[name] *= np.float32(factor)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def _config(target: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((target / "config.json").read_text())
    return config


def _write(
    folder: Path,
    target: Path,
    architecture: str,
    tensors: Mapping[str, Any],
    ids: Sequence[int] | None,
    **entries: Any,
) -> Path:
    from gatekeeper_adapters.engines.reference.convert import tokenizer_digest
    from safetensors.numpy import save_file

    config = _config(target)
    shape = {
        name: config[name]
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "vocab_size",
            "max_position_embeddings",
        )
    }
    document = {
        "architectures": [architecture],
        **shape,
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
        "shared_rows": True,
        "tokenizer": tokenizer_digest(target),
        "torch_dtype": "float32",
        "provenance": {"source": "tests"},
        **entries,
    }
    stored = dict(tensors)
    if ids is not None:
        kept = np.asarray(sorted(ids), dtype="<i8")
        stored["d2t"] = kept
        document |= {
            "draft_vocab_size": len(kept),
            "token_map": hashlib.sha256(kept.tobytes()).hexdigest(),
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(document, indent=1))
    return folder


def load_six_kinds(root: Path, target: Path, *, draft_ids: Iterable[int]) -> Any:
    """One engine of eight slots with every kind of proposer on a target of two layers."""
    from gatekeeper_adapters.engines.reference.cut import cut_layers
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    heads, features = write_tiny_medusa(root / "m", target), write_tiny_eagle(root / "e", target)
    return load_engine(
        target,
        {"kind": "ngram"},
        others=[
            ({"kind": "draft_lm"}, cut_layers(target, [0], draft_ids, root / "draft")),
            ({"kind": "self_speculation", "parameters": {"skip_layers": [1]}}, None),
            ({"kind": "medusa", "parameters": {"tree": [2, 2, 1]}}, heads),
            ({"kind": "eagle", "parameters": {"tree": [2, 2, 1]}}, features),
            ({"kind": "eagle2", "parameters": {"depth": 3, "top_k": 3, "nodes": 6}}, features),
        ],
        version="test",
        options=Options(max_batch=8, max_context=256),
    )
