"""The target drafts for itself: exact, and what a draft step cached is never read by the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive, ragged
from proposer_cases import CASES, open_case, write_files
from tiny_drafters import damp

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings
from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HOT = SamplingSettings(temperature=1.0)
KEPT = ["skip", "exit"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("self")
    return {name: write_files(name, root)[0] for name in KEPT}


@pytest.fixture(scope="module")
def build(models: dict[str, Path]) -> Callable[..., Any]:
    def make(name: str = "skip", folder: Path | None = None, **options: Any) -> Any:
        return open_case(CASES[name], (folder or models[name], None), **options)

    return make


def rate(record: Any) -> float:
    return sum(r.accepted for r in record.rounds) / sum(r.drafted for r in record.rounds)


def test_the_prompts_end_is_cached_without_a_draft_and_a_single_token_is_drafted_from(
    build: Any,
) -> None:
    record = drive(build(), ragged(3, gamma=3))
    first = {r.request_id: r.drafted for r in record.rounds if r.index == 0}
    assert first == {"r0": 3, "r1": 0, "r2": 0}  # the prompt of r0 is one token long
    later = [r for r in record.rounds if r.index == 1]
    assert all(r.drafted == 3 and r.draft_s > 0 for r in later)


@pytest.mark.parametrize("name", KEPT)
def test_drafted_text_equals_transformers(name: str, build: Any, models: Any) -> None:
    from transformers import LlamaForCausalLM

    ordinary = LlamaForCausalLM.from_pretrained(models[name], dtype=torch.float32)
    record = drive(build(name), ragged(8, gamma=4))
    for request in ragged(8, gamma=4):
        prompt = torch.tensor([request.prompt])
        out = ordinary.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert record.tokens[request.request_id] == out[0, len(request.prompt) :].tolist()
    assert 0.1 < rate(record) < 1.0  # acceptances and rejections were both seen


@pytest.mark.parametrize("name", KEPT)
def test_the_draft_path_is_the_model_cut_to_the_kept_layers(
    name: str, build: Any, models: Any, tmp_path: Path
) -> None:
    from gatekeeper_adapters.engines.reference.cut import cut_layers
    from gatekeeper_adapters.engines.reference.packing import Segment, pack
    from transformers import LlamaForCausalLM

    kept = {"skip": [0, 3], "exit": [0, 1, 2]}[name]
    cut = LlamaForCausalLM.from_pretrained(
        cut_layers(models[name], kept, None, tmp_path / "cut"), dtype=torch.float32
    )
    decoder = build(name)._decoder
    text = list(range(3, 80, 4))
    with torch.inference_mode():
        before = decoder.cache.buffer.clone()
        batch = pack([Segment(2, 0, text, len(text))], decoder.cache)
        logits = decoder.partial(kept)(batch)
        theirs = cut(torch.tensor([text])).logits[0]
    torch.testing.assert_close(logits, theirs, atol=1e-4, rtol=1e-4)
    left_out = [layer for layer in range(4) if layer not in kept]
    assert torch.equal(decoder.cache.buffer[left_out], before[left_out])


@pytest.mark.parametrize("name", KEPT)
def test_leaving_out_layers_that_do_nothing_accepts_everything(
    name: str, build: Any, tmp_path: Path
) -> None:
    """So the draft reads the target's own cache at the right places, in every batch."""
    folder = damp(write_files(name, tmp_path)[0], 0.0, {"skip": (1, 2), "exit": (3,)}[name])
    engine = build(name, folder)
    for settings in ({}, {"sampling": HOT, "evidence": True}):
        record = drive(engine, ragged(8, gamma=4, **settings))
        if settings:  # q = p up to rounding: a rejection is possible but rare
            assert rate(record) > 0.99
        else:
            assert rate(record) == 1.0
    for request in ragged(8, gamma=4, sampling=HOT):
        tokens = record.tokens[request.request_id]
        q = np.concatenate([e.q for e in record.emissions if e.request_id == request.request_id])
        known = ~np.isnan(q).any(axis=1)
        p = engine.score(request.prompt, tokens, HOT).p
        np.testing.assert_allclose(q[known], p[known], atol=1e-5)


class Watched:
    """Wraps the proposer: what rows of the cache did a proposal write, and what may be done to them."""

    def __init__(self, engine: Any, *, spoil: float | None = None) -> None:
        self.engine, self.spoil = engine, spoil
        self.drafted: set[int] = set()
        self.verified: set[int] = set()
        self.steps: list[tuple[set[int], set[int]]] = []
        self.logits: list[Any] = []
        decoder, proposer = engine._decoder, engine._proposer
        cache, forward, propose, run = (
            decoder.cache,
            decoder.forward,
            proposer.propose,
            proposer._run,
        )

        def drafting(batch: Any) -> Any:
            self.drafted |= set(batch.cache_rows.tolist())
            return run(batch)

        def proposing(windows: Any) -> Any:
            before = cache.buffer.clone()
            found = propose(windows)
            changed = (cache._flat != before.view_as(cache._flat)).flatten(3).any(3)
            assert set(torch.nonzero(changed.any(0).any(0)).flatten().tolist()) <= self.drafted
            if self.spoil is not None and self.drafted:
                cache._flat[:, :, sorted(self.drafted)] = self.spoil
            return found

        def verifying(batch: Any) -> Any:
            out = forward(batch)
            rows = set(batch.cache_rows.tolist())
            self.steps.append((self.drafted, rows))
            self.drafted = set()
            self.logits.append(out.clone())
            return out

        proposer._run, proposer.propose, decoder.forward = drafting, proposing, verifying


@pytest.mark.parametrize("evidence", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_verification_writes_every_row_that_a_draft_step_wrote(
    name: str, evidence: Any, build: Any
) -> None:
    engine = build(name, max_batch=3)  # more requests than slots: slots change hands
    watched = Watched(engine)
    settings = {"sampling": HOT, "evidence": evidence, "end_tokens": (2, 9), "min_tokens": 3}
    drive(engine, ragged(8, gamma=3, **settings))
    assert sum(bool(drafted) for drafted, _ in watched.steps) > 10
    for drafted, verified in watched.steps:
        assert drafted <= verified


@pytest.mark.parametrize("spoil", [float("nan"), 1e4])
@pytest.mark.parametrize("name", KEPT)
def test_the_target_never_reads_what_a_draft_step_wrote(
    name: str, spoil: float, build: Any
) -> None:
    """Every layer of the drafted rows is spoilt before verification: its logits stay the same bits."""
    for settings in ({}, {"sampling": HOT, "evidence": True}):
        requests = ragged(8, gamma=3, **settings)
        logits, tokens = [], []
        for value in (None, spoil):
            engine = build(name, max_batch=3)
            watched = Watched(engine, spoil=value)
            tokens.append(drive(engine, requests).tokens)
            logits.append(watched.logits)
        assert tokens[0] == tokens[1]
        assert all(torch.equal(a, b) for a, b in zip(*logits, strict=True))


def cached(engine: Any, requests: list[DecodeRequest], steps: int) -> dict[str, Any]:
    """Keys and values of every live request's committed text after so many steps."""
    for request in requests:
        engine.submit(request)
    for _ in range(steps):
        engine.step()
    live = engine._scheduler.active.values()
    return {
        s.id: (list(s.tokens), engine._decoder.cache.buffer[:, :, s.slot, : s.cached].clone())
        for s in live
    }


def difference(engine: Any, fresh: Any, requests: list[DecodeRequest]) -> float:
    """Largest difference between the engine's cache and one prefill of the same text."""
    from gatekeeper_adapters.engines.reference.packing import Segment, pack

    largest = 0.0
    for tokens, kv in cached(engine, requests, 9).values():
        count = kv.shape[2]
        assert count == len(tokens) - 1
        decoder = fresh._decoder
        with torch.inference_mode():
            decoder.forward(pack([Segment(0, 0, tokens[:count], 0)], decoder.cache))
        wanted = decoder.cache.buffer[:, :, 0, :count]
        largest = max(largest, float((kv - wanted).abs().max()))
    return largest


@pytest.mark.parametrize("name", KEPT)
def test_committed_rows_are_those_of_the_whole_target(name: str, build: Any) -> None:
    assert difference(build(name), build(name), ragged(5, gamma=3, tokens=60)) < 1e-4


def test_a_committed_row_written_by_a_draft_step_would_show(build: Any) -> None:
    """After an exit the kept layers hold the target's own numbers, so only skipping can tell."""
    from gatekeeper_adapters.engines.reference.packing import Segment, pack

    faulty = build("skip")
    proposer = faulty._proposer

    def one_early(chains: Any) -> Any:
        segments = [
            Segment(c.sequence.slot, c.end - 2, c.since(c.end - 2), 1) for c in chains if c.end >= 2
        ]
        logits = proposer._run(pack(segments, proposer._cache))
        return logits, logits.argmax(dim=-1).tolist()

    proposer._extend = one_early
    assert difference(faulty, build("skip"), ragged(5, gamma=3, tokens=60)[1:]) > 0.01


def test_the_ledger_has_no_draft_weights_and_no_draft_cache(build: Any, models: Any) -> None:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    engine = build()
    ngram = load_engine(
        models["skip"],
        {"kind": "ngram"},
        version="test",
        options=Options(max_batch=8, max_context=256),
    )
    for request in ragged(4, gamma=3, sampling=HOT):
        engine.submit(request)
    for _ in range(3):
        engine.step()
    ledger, plain = engine.memory(), ngram.memory()
    assert (ledger.draft_weights, ledger.draft_kv) == (0, 0)
    assert (ledger.target_weights, ledger.target_kv) == (plain.target_weights, plain.target_kv)
    assert ledger.candidates == 4 * 3 * (16 + 97 * 4)
    assert ledger.workspace == 4 * 4 * 97 * 4  # verification's logits, a draft step's are fewer
    assert ledger.complete


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "proposer.parameters"),
        ({"exit_after": 1, "skip_layers": [1]}, "proposer.parameters"),
        ({"exit_after": 4}, "proposer.parameters.exit_after"),
        ({"exit_after": 1.5}, "proposer.parameters.exit_after"),
        ({"skip_layers": []}, "proposer.parameters.skip_layers"),
        ({"skip_layers": [4]}, "proposer.parameters.skip_layers"),
        ({"skip_layers": [0, 1, 2, 3]}, "proposer.parameters.skip_layers"),
        ({"exit_layer": 1}, "proposer.parameters.exit_layer"),
    ],
)
def test_unsuitable_layers_are_refused_with_a_remedy(
    parameters: dict[str, Any], field: str, build: Any
) -> None:
    with pytest.raises(InputError) as refused:
        build(parameters=parameters)
    assert refused.value.field == field
    assert refused.value.remedy


FAMILY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.35,
}
ADDS = {
    "qwen2": ("model.layers.1.self_attn.o_proj", "model.layers.1.mlp.down_proj"),
    "gpt_neox": ("gpt_neox.layers.1.attention.dense", "gpt_neox.layers.1.mlp.dense_4h_to_h"),
}


@pytest.mark.parametrize("factor", [0.0, 0.3])
@pytest.mark.parametrize("family", ADDS)
def test_other_architectures_draft_for_themselves_too(
    family: str, factor: float, build: Any, tmp_path: Path
) -> None:
    import transformers
    from tiny_models import write_tokenizer

    config = {
        "qwen2": lambda: transformers.Qwen2Config(num_key_value_heads=2, **FAMILY),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(**FAMILY),
    }[family]()
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name in ADDS[family]:
            module = model.get_submodule(name)
            module.weight *= factor
            if module.bias is not None:
                module.bias *= factor
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, 97)
    engine = build(folder=tmp_path, parameters={"skip_layers": [1]})
    assert engine.info.details["forward"] == "SlotDecoder"
    watched = Watched(engine, spoil=float("nan"))
    record = drive(engine, ragged(4, gamma=3))
    assert all(drafted <= verified for drafted, verified in watched.steps)
    assert record.tokens == drive(engine, ragged(4, gamma=0)).tokens
    assert rate(record) == 1.0 if factor == 0.0 else 0 < rate(record) < 1.0
    assert engine.memory().draft_weights == 0


def test_an_architecture_whose_layers_are_not_found_is_refused(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers
    from gatekeeper_adapters.engines.reference import fallback
    from tiny_models import write_tokenizer

    config = transformers.Qwen2Config(num_key_value_heads=2, **FAMILY)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, 97)
    monkeypatch.setattr(fallback, "ModuleList", torch.nn.Sequential)
    with pytest.raises(Incompatible, match="does not find them") as refused:
        build(folder=tmp_path, parameters={"skip_layers": [1]})
    assert refused.value.field == "proposer.kind"


def test_the_provider_opens_it_without_files_of_a_draft(tmp_path: Path, models: Any) -> None:
    from gatekeeper_adapters.engines.reference import PROVIDER

    found = PROVIDER.manifest(f"file:{models['exit']}", cache=tmp_path)
    keys = ("source", "revision", "files", "tokenizer", "vocab_size", "architecture", "padding_ids")
    document = {
        "schema": 1,
        "target": {key: found[key] for key in keys},
        "proposer": {"kind": "self_speculation", "parameters": {"exit_after": 3}},
        "gamma": 2,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [HOT.to_dict()],
        "engine": {
            "name": "reference",
            "version": PROVIDER.version(),
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }
    from gatekeeper.core.artifacts import parse_artifact

    assert parse_artifact(document).proposer.kind == "self_speculation"
    engine = PROVIDER.open(document, cache=tmp_path, max_batch=2, device="cpu")
    assert len(drive(engine, [DecodeRequest("a", (5, 6), 9, gamma=2)]).tokens["a"]) == 9
    engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_where_bits_do_not_depend_on_the_batch_drafting_leaves_them_alone(
    dtype: str, build: Any
) -> None:
    engine = build(invariant=True, dtype=dtype)
    plain, drafted = (drive(engine, ragged(6, gamma=gamma)).tokens for gamma in (0, 4))
    if engine.info.identity_rule == "bitwise":
        assert drafted == plain
    for request in ragged(6, gamma=0):
        scored = engine.score(request.prompt, drafted[request.request_id], GREEDY)
        assert scored.deficit.max() < (1e-4 if dtype == "float32" else 0.5)
