from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import Record, drive
from engine_faults import FAULTS
from scipy import stats
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HOT = SamplingSettings(temperature=1.0)
SETTINGS = {
    "temperature": SamplingSettings(temperature=0.8),
    "filters": SamplingSettings(temperature=0.9, top_k=20, top_p=0.9, min_p=0.02),
    "penalties": SamplingSettings(
        temperature=0.8, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
    ),
    "bias": SamplingSettings(temperature=1.0, logit_bias=((3, 2.0),), forbidden_tokens=(5, 6)),
}


def ragged(count: int, *, gamma: int, tokens: int = 16, **changes: Any) -> list[DecodeRequest]:
    rng = np.random.default_rng(6)
    prompts = [tuple(rng.integers(0, 97, 4 + 5 * i).tolist()) for i in range(count)]
    return [
        DecodeRequest(f"r{i}", prompt, tokens + i, gamma=gamma, seed=100 + i, **changes)
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["ngram", "draft_lm"])
def test_a_request_gives_the_same_tokens_alone_and_in_any_batch(
    name: str, kind: str, open_tiny: Any
) -> None:
    engine = open_tiny(kind)
    requests = ragged(8, gamma=3, sampling=SETTINGS[name])
    together = drive(engine, requests).tokens
    pairs: dict[str, list[int]] = {}
    for request in requests[:4]:
        assert drive(engine, [request]).tokens[request.request_id] == together[request.request_id]
    for i in range(0, 8, 2):
        pairs |= drive(engine, requests[i : i + 2]).tokens
    assert pairs == together


def test_another_seed_gives_another_text(open_tiny: Any) -> None:
    engine = open_tiny("draft_lm")
    texts = {
        tuple(drive(engine, [DecodeRequest("x", (1, 2, 3), 20, HOT, seed, gamma=2)]).tokens["x"])
        for seed in range(6)
    }
    assert len(texts) == 6


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["ngram", "draft_lm"])
def test_evidence_is_complete_and_consistent(name: str, kind: str, open_tiny: Any) -> None:
    engine = open_tiny(kind)
    settings = SETTINGS[name]
    requests = ragged(4, gamma=3, sampling=settings, evidence=True, end_tokens=(2,), min_tokens=4)
    record = drive(engine, requests)
    silent = drive(engine, ragged(4, gamma=3, sampling=settings, end_tokens=(2,), min_tokens=4))
    assert silent.tokens == record.tokens
    assert all(emission.q is None for emission in silent.emissions)
    for request in requests:
        mine = [e for e in record.emissions if e.request_id == request.request_id]
        tokens = record.tokens[request.request_id]
        assert [e.round for e in mine] == list(range(len(mine)))
        scored = engine.score(request.prompt, tokens, settings, stop=(2,), min_tokens=4)
        np.testing.assert_allclose(scored.p.sum(axis=1), 1.0, atol=1e-5)
        assert (scored.p[np.arange(len(tokens)), tokens] > 0).all()
        assert (scored.deficit >= 0).all()
        place = 0
        for emission in mine:
            count = len(emission.tokens)
            assert emission.q.shape == (count, 97)
            assert emission.q.dtype == np.float32
            known = ~np.isnan(emission.q).any(axis=1)
            np.testing.assert_allclose(emission.q[known].sum(axis=1), 1.0, atol=1e-5)
            if kind == "draft_lm":
                assert known.all()  # the bonus position included
                assert (emission.q[:, 7] == 0).all()  # 7 is not in the draft's vocabulary
            for i, draft in enumerate(emission.draft):
                assert (emission.kind[i] == 2) == (draft == -1)
                if emission.kind[i] == 0:
                    assert emission.tokens[i] == draft
                if draft >= 0:
                    assert emission.q[i, draft] > 0
                if emission.kind[i] == 1 and kind == "ngram":
                    assert emission.tokens[i] != draft
            place += count
        assert place == len(tokens)


def test_ordinary_decoding_has_no_proposal(open_tiny: Any) -> None:
    record = drive(open_tiny("draft_lm"), ragged(2, gamma=0, sampling=HOT, evidence=True))
    for emission in record.emissions:
        assert np.isnan(emission.q).all()
        assert emission.kind == (2,)
        assert emission.draft == (-1,)


def joint_counts(engine: Any, gamma: int, runs: int) -> np.ndarray:
    counts = np.zeros((16, 16))
    for start in range(0, runs, 8):
        record: Record = drive(
            engine,
            [
                DecodeRequest(f"s{seed}", (1, 5, 9), 2, HOT, seed, gamma)
                for seed in range(start, start + 8)
            ],
        )
        for first, second in record.tokens.values():
            counts[first, second] += 1
    return counts


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    order = np.argsort(expected, axis=None)
    cumulative = np.cumsum(expected.ravel()[order])
    groups = np.minimum((cumulative // 10).astype(int), int(cumulative[-1] // 10) - 1)
    observed = np.bincount(groups, counts.ravel()[order])
    wanted = np.bincount(groups, expected.ravel()[order])
    keep = wanted > 0
    return float(stats.chisquare(observed[keep], wanted[keep]).pvalue)


@pytest.mark.parametrize("kind", ["ngram", "draft_lm"])
def test_two_tokens_follow_the_target_jointly_and_a_fault_does_not(
    kind: str, tmp_path: Any, open_tiny: Any
) -> None:
    from gatekeeper_adapters.engines.reference.cut import cut_layers
    from gatekeeper_adapters.engines.reference.loader import Options, Switches, load_engine

    target = write_tiny_llama(tmp_path / "target", vocab=16, seed=3)
    draft = cut_layers(target, [0], range(1, 16), tmp_path / "draft")
    runs = 1600

    def build(switches: Switches) -> Any:
        return load_engine(
            target,
            {"kind": kind},
            draft if kind == "draft_lm" else None,
            version="test",
            options=Options(max_batch=8, max_context=64, switches=switches),
        )

    engine = build(Switches())
    first = engine.score((1, 5, 9), (0,), HOT).p[0]
    second = np.stack([engine.score((1, 5, 9), (a, 0), HOT).p[1] for a in range(16)])
    joint = first[:, None].astype(float) * second
    expected = runs * joint / joint.sum()
    assert p_value(joint_counts(engine, 1, runs), expected) > 1e-3
    if kind == "draft_lm":
        faulty = build(FAULTS["residual_not_subtracted"])
        assert p_value(joint_counts(faulty, 1, runs), expected) < 1e-4


@pytest.mark.parametrize("kind", ["ngram", "draft_lm", "self"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_independent_forward_agrees_with_the_engine(
    kind: str,
    tied: Any,
    open_tiny: Any,
    tiny: Any,
    tmp_path: Any,
) -> None:
    from transformers import LlamaForCausalLM

    folder = tiny if tied else write_tiny_llama(tmp_path / "m", tie_word_embeddings=False)
    engine = open_tiny(kind if tied else "ngram", folder)
    seen: dict[str, list[Any]] = {}
    forward = engine._decoder.forward

    def spy(batch: Any) -> Any:
        out = forward(batch)
        seen.setdefault("logits", []).append(out.clone())
        return out

    engine._decoder.forward = spy
    request = ragged(4, gamma=3)[3]
    record = drive(engine, [request])
    tokens = record.tokens[request.request_id]
    kept = [
        rows[: entry.committed] for rows, entry in zip(seen["logits"], record.rounds, strict=True)
    ]
    own = torch.cat(kept)
    text = [*request.prompt, *tokens]
    dense = engine._scorer._model.logits(text[:-1], len(tokens))
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([text[:-1]])).logits[0, -len(tokens) :]
    assert float((own - dense).abs().max()) < 1e-4
    assert float((dense - theirs).abs().max()) < 1e-4
    assert float(engine.score(request.prompt, tokens, request.sampling).deficit.max()) < 1e-4


def test_planted_faults_reach_the_tokens(open_tiny: Any) -> None:
    from gatekeeper_adapters.engines.reference.loader import Switches

    requests = ragged(4, gamma=3, tokens=24, sampling=HOT, evidence=True)
    exact = drive(open_tiny("draft_lm", switches=Switches()), requests)
    for name, switches in FAULTS.items():
        found = drive(open_tiny("draft_lm", switches=switches), requests)
        different = found.tokens != exact.tokens
        claims = [e.q for e in found.emissions]
        assert different or not all(
            np.array_equal(a, b.q) for a, b in zip(claims, exact.emissions, strict=False)
        ), name
