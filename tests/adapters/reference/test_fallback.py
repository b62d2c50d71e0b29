from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import drive
from tiny_models import write_tokenizer

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import Incompatible

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

VOCAB = 97
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.35,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write(folder: Any, family: str, **changes: Any) -> Any:
    """A random model of another architecture, made by transformers itself."""
    import transformers

    config = {
        "qwen2": lambda: transformers.Qwen2Config(num_key_value_heads=2, **COMMON, **changes),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(**COMMON, **changes),
    }[family]()
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCAB)
    return folder


@pytest.mark.parametrize("family", ["qwen2", "gpt_neox"])
def test_other_architectures_decode_speculatively_and_exactly(
    family: str, tmp_path: Any, open_tiny: Any
) -> None:
    from transformers import AutoModelForCausalLM

    folder = write(tmp_path / family, family)
    engine = open_tiny("ngram", folder, prefill_chunk=16)
    assert engine.info.details["forward"] == "SlotDecoder"
    ordinary = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rng = np.random.default_rng(2)
    prompts = [tuple(rng.integers(3, VOCAB, 4 + 9 * i).tolist()) for i in range(5)]
    record = drive(engine, [DecodeRequest(f"r{i}", p, 20, gamma=3) for i, p in enumerate(prompts)])
    assert sum(entry.accepted for entry in record.rounds) > 0
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        out = ordinary.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        tokens = record.tokens[f"r{i}"]
        assert tokens == out[0, len(prompt) :].tolist()
        scored = engine.score(prompt, tokens, SamplingSettings(temperature=1.0))
        with torch.no_grad():
            theirs = ordinary(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, -20:]
        np.testing.assert_allclose(scored.p, torch.softmax(theirs, -1).numpy(), atol=1e-5)
        assert scored.deficit.max() < 1e-4


def test_a_llama_draft_serves_another_architecture(tmp_path: Any, tiny: Any) -> None:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    engine = load_engine(
        write(tmp_path / "q", "qwen2"),
        {"kind": "draft_lm", "parameters": {}},
        tiny,
        version="test",
        options=Options(max_batch=2, max_context=128),
    )
    request = DecodeRequest("r", (5, 6, 7), 16)
    plain = drive(engine, [request]).tokens
    assert drive(engine, [DecodeRequest("r", (5, 6, 7), 16, gamma=3)]).tokens == plain
    engine.close()


def test_sliding_windows_are_refused(tmp_path: Any, open_tiny: Any) -> None:
    folder = write(
        tmp_path / "s", "qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1
    )
    with pytest.raises(Incompatible, match="full attention"):
        open_tiny("ngram", folder)
