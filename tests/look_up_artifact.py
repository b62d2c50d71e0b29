"""An artifact that drafts by look-up, of a target that nobody has to have."""

from __future__ import annotations

from typing import Any

__all__ = ["look_up_artifact"]


def look_up_artifact(engine: str) -> dict[str, Any]:
    """Its document, for the engine of that name."""
    return {
        "schema": 1,
        "target": {
            "source": "hf:tiny/model@abc",
            "revision": "abc",
            "files": {"model.safetensors": "1" * 64},
            "tokenizer": "2" * 64,
            "vocab_size": 32,
            "architecture": "llama",
        },
        "proposer": {"kind": "ngram", "parameters": {"max_match": 3, "min_match": 1}},
        "gamma": 4,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 1.0}],
        "engine": {
            "name": engine,
            "version": "1",
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }
