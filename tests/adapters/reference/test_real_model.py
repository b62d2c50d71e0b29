"""SmolLM2-135M-Instruct: tokenizer, text and scores against transformers, bfloat16.

Greedy text at batch 1, 3 and 8 is in test_real_proposers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings
from gatekeeper.core.stats.greedy import BASELINE_LIMIT, logit_sigma

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model

CALL = '{"name": "get_weather", "arguments": {"city": "%s", "unit": "celsius"}}'
ASKED = (
    "Write one tool call per city, exactly in this form: "
    + CALL % "Paris"
    + " Cities: Rome, Oslo.",
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that reverses a list.",
)


def chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Any:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    return load_engine(
        smollm2, {"kind": "ngram"}, version="test", options=Options(max_batch=8, max_context=512)
    )


def requests(engine: Any, gamma: int, **changes: Any) -> list[DecodeRequest]:
    return [
        DecodeRequest(f"r{i}", engine.tokenize(chat(text)), 32, gamma=gamma, **changes)
        for i, text in enumerate(ASKED)
    ]


@pytest.fixture(scope="module")
def ordinary(engine: Any) -> dict[str, list[int]]:
    return drive(engine, requests(engine, 0)).tokens


def test_digits_and_newlines_are_split_as_the_model_was_trained(engine: Any, smollm2: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    encoded = [
        tokenizer.encode(t, add_special_tokens=False).tokens for t in ("\n\n1.", "2026", "a10")
    ]
    assert encoded == [["ĊĊ", "1", "."], ["2", "0", "2", "6"], ["a", "1", "0"]]
    assert (
        engine.tokenize(chat("hi"))[0] == 1
    )  # <|im_start|> is one token and nothing is put before
    text = "Prices: 12.50\n\n1. über"
    assert engine.detokenize(engine.tokenize(text)) == text
    assert engine.info.end_tokens == (2,)
    assert engine.info.vocab_size == 49152


def test_greedy_text_equals_transformers(
    engine: Any, ordinary: dict[str, list[int]], smollm2: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    for i, text in enumerate(ASKED):
        prompt = torch.tensor([engine.tokenize(chat(text))])
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=32,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=2,
        )
        assert ordinary[f"r{i}"] == out[0, prompt.shape[1] :].tolist()


def test_the_independent_scorer_confirms_every_greedy_token(
    engine: Any, ordinary: dict[str, list[int]]
) -> None:
    for request in requests(engine, 0):
        scored = engine.score(request.prompt, ordinary[request.request_id], GREEDY)
        assert scored.deficit.max() < 1e-3


def test_a_cut_drafts_sampled_text_with_complete_evidence(
    smollm2: Path, engine: Any, tmp_path: Path
) -> None:
    from gatekeeper_adapters.engines.reference.cut import cut_layers
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    draft = cut_layers(smollm2, [0, 1, 29], range(8192), tmp_path / "draft")
    speculative = load_engine(
        smollm2,
        {"kind": "draft_lm"},
        draft,
        version="test",
        options=Options(max_batch=4, max_context=256),
    )
    settings = SamplingSettings(temperature=0.7, top_p=0.9, top_k=20)
    wanted = requests(engine, 2, sampling=settings, seed=3, evidence=True)[:2]
    record = drive(speculative, wanted)
    for request in wanted:
        tokens = record.tokens[request.request_id]
        scored = speculative.score(request.prompt, tokens, settings)
        assert (scored.p[np.arange(len(tokens)), tokens] > 0).all()
        q = np.concatenate([e.q for e in record.emissions if e.request_id == request.request_id])
        np.testing.assert_allclose(q.sum(axis=1), 1.0, atol=1e-4)


def test_bfloat16_runs_and_stays_close(smollm2: Path, engine: Any) -> None:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    half = load_engine(
        smollm2,
        {"kind": "ngram"},
        version="test",
        dtype="bfloat16",
        options=Options(max_batch=2, max_context=256),
    )
    wanted = [
        DecodeRequest("a", engine.tokenize(chat(ASKED[0])), 16, gamma=gamma) for gamma in (0, 3)
    ]
    texts = [drive(half, [request]).tokens["a"] for request in wanted]
    sampled = SamplingSettings(temperature=1.0)
    for text in texts:
        # a processor with bf16 products was seen .75 off at one place of a thousand: the gate's own
        # limit of what still is the same model stands for single places, their sd for all of them
        assert half.score(wanted[0].prompt, text, GREEDY).deficit.max() < BASELINE_LIMIT
        rounded, full = (e.score(wanted[0].prompt, text, sampled).p for e in (half, engine))
        assert logit_sigma(rounded, full) < 0.1
    if half.info.identity_rule == "bitwise":
        assert texts[0] == texts[1]
