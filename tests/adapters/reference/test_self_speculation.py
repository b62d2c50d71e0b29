"""The target drafts for itself: exact, and what a draft step cached is never read by the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive, ragged
from engine_faults import FAULTS
from strict_bank import strict_log10_e
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings
from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HOT = SamplingSettings(temperature=1.0)
GREEDY_SETTINGS = {
    "plain": GREEDY,
    "penalties": SamplingSettings(
        repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3
    ),
    "bias+forbidden": SamplingSettings(logit_bias=((5, 4.0), (9, -4.0)), forbidden_tokens=(3, 7)),
}
SAMPLED_SETTINGS = {
    "filters": SamplingSettings(temperature=0.9, top_k=20, top_p=0.9, min_p=0.02),
    "penalties": SamplingSettings(
        temperature=0.8, repetition_penalty=1.2, presence_penalty=0.3, logit_bias=((3, 2.0),)
    ),
}
KEPT = {"skip": {"skip_layers": [1, 2]}, "exit": {"exit_after": 3}}
CAUGHT = {"skip": "residual_not_subtracted", "exit": "bonus_from_q"}
FAINT = {"skip": (1, 2), "exit": (3,)}
"""Layers damped in the model, so that leaving them out drafts well but not perfectly."""


def damp(folder: Path, layers: tuple[int, ...], factor: float) -> Path:
    """Scale what these layers add; at 0 they do nothing."""
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for layer in layers:
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"model.layers.{layer}.{name}.weight"] *= np.float32(factor)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("self")
    return {
        name: damp(write_tiny_llama(root / name, num_hidden_layers=4, seed=4), layers, 0.5)
        for name, layers in FAINT.items()
    }


@pytest.fixture(scope="module")
def build(models: dict[str, Path]) -> Callable[..., Any]:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    def make(name: str = "skip", folder: Path | None = None, **options: Any) -> Any:
        return load_engine(
            folder or models[name],
            {"kind": "self_speculation", "parameters": options.pop("parameters", KEPT[name])},
            version="test",
            dtype=options.pop("dtype", "float32"),
            options=Options(**{"max_batch": 8, "max_context": 256, **options}),
        )

    return make


def rate(record: Any) -> float:
    return sum(r.accepted for r in record.rounds) / sum(r.drafted for r in record.rounds)


@pytest.mark.parametrize("name", KEPT)
def test_every_batch_size_equals_transformers_and_ordinary_decoding(
    name: str, build: Any, models: Any
) -> None:
    from transformers import LlamaForCausalLM

    ordinary = LlamaForCausalLM.from_pretrained(models[name], dtype=torch.float32)
    expected = {}
    for request in ragged(8, gamma=0):
        prompt = torch.tensor([request.prompt])
        out = ordinary.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected[request.request_id] = out[0, len(request.prompt) :].tolist()
    engine = build(name)
    assert engine.info.details["proposer"] == "self_speculation"
    for batch, gamma in [*zip(range(1, 9), (4, 1, 0, 2) * 2, strict=True), (8, 0), (8, 4)]:
        record = drive(engine, ragged(batch, gamma=gamma))
        assert record.tokens == {f"r{i}": expected[f"r{i}"] for i in range(batch)}
    assert 0.1 < rate(record) < 1.0  # acceptances and rejections were both seen


@pytest.mark.parametrize("setting", GREEDY_SETTINGS)
@pytest.mark.parametrize("name", KEPT)
def test_processors_and_end_tokens_do_not_change_what_is_emitted(
    name: str, setting: str, build: Any
) -> None:
    engine = build(name)
    settings = {
        "sampling": GREEDY_SETTINGS[setting],
        "end_tokens": (2, 6, 31, 40, 55),
        "min_tokens": 9,
    }
    plain = drive(engine, ragged(4, gamma=0, **settings))
    for gamma in (1, 6):
        record = drive(engine, ragged(4, gamma=gamma, **settings))
        assert (record.tokens, record.reasons) == (plain.tokens, plain.reasons)
    for tokens in plain.tokens.values():
        assert not set(tokens) & set(GREEDY_SETTINGS[setting].forbidden_tokens)
        assert not set(tokens[:9]) & set(settings["end_tokens"])


def test_each_request_has_its_own_window_and_ordinary_ones_share_the_step(build: Any) -> None:
    engine = build()
    plain = drive(engine, ragged(8, gamma=0)).tokens
    gammas = (0, 4, 1, 0, 7, 2, 0, 3)
    mixed = [
        DecodeRequest(r.request_id, r.prompt, r.max_tokens, gamma=gamma)
        for r, gamma in zip(ragged(8, gamma=0), gammas, strict=True)
    ]
    record = drive(engine, mixed)
    assert record.tokens == plain
    for i, gamma in enumerate(gammas):
        drafted = {r.drafted for r in record.rounds if r.request_id == f"r{i}"}
        assert max(drafted) == gamma
    assert max(r.batch for r in record.rounds) == 8


def test_the_prompts_end_is_cached_without_a_draft_and_a_single_token_is_drafted_from(
    build: Any,
) -> None:
    record = drive(build(), ragged(3, gamma=3))
    first = {r.request_id: r.drafted for r in record.rounds if r.index == 0}
    assert first == {"r0": 3, "r1": 0, "r2": 0}  # the prompt of r0 is one token long
    later = [r for r in record.rounds if r.index == 1]
    assert all(r.drafted == 3 and r.draft_s > 0 for r in later)


def test_the_prompt_may_be_cached_in_pieces(build: Any) -> None:
    requests = ragged(8, gamma=2, tokens=12)
    whole = drive(build(prefill_chunk=256), requests)
    assert drive(build(prefill_chunk=16), requests).tokens == whole.tokens


def test_the_context_edge_shortens_windows(build: Any) -> None:
    engine = build(max_context=40)
    prompt = tuple(range(10, 36))
    texts = []
    for gamma in (0, 1, 8):
        request = DecodeRequest("edge", prompt, 100, gamma=gamma, evidence=True)
        record = drive(engine, [request])
        assert record.reasons == {"edge": "context"}
        texts.append(record.tokens["edge"])
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 14


def test_a_cancelled_request_leaves_nothing_to_the_next_owner_of_its_slot(build: Any) -> None:
    first, second, third = ragged(6, gamma=4)[3:]
    fresh = {r.request_id: drive(build(max_batch=1), [r]).tokens[r.request_id] for r in (third,)}
    engine = build(max_batch=1)
    for request in (first, second, third):
        engine.submit(request)
    for _ in range(4):
        engine.step()
    engine.cancel(first.request_id)
    engine.cancel(second.request_id)
    tokens: list[int] = []
    for _ in range(100):
        result = engine.step()
        for emission in result.emitted:
            assert emission.request_id == third.request_id
            tokens += emission.tokens
    assert tokens == fresh[third.request_id]


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
    folder = damp(write_tiny_llama(tmp_path / name, num_hidden_layers=4, seed=4), FAINT[name], 0.0)
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


@pytest.mark.parametrize("setting", SAMPLED_SETTINGS)
@pytest.mark.parametrize("name", KEPT)
def test_a_request_gives_the_same_tokens_alone_and_in_any_batch(
    name: str, setting: str, build: Any
) -> None:
    engine = build(name)
    requests = ragged(8, gamma=3, tokens=8, sampling=SAMPLED_SETTINGS[setting])
    together = drive(engine, requests).tokens
    for request in requests[1::3]:
        assert drive(engine, [request]).tokens[request.request_id] == together[request.request_id]


@pytest.mark.parametrize("setting", SAMPLED_SETTINGS)
@pytest.mark.parametrize("name", KEPT)
def test_evidence_has_a_dense_row_wherever_there_was_a_draft_and_at_the_bonus(
    name: str, setting: str, build: Any
) -> None:
    engine = build(name)
    settings = {"sampling": SAMPLED_SETTINGS[setting], "end_tokens": (2,), "min_tokens": 4}
    record = drive(engine, ragged(5, gamma=3, evidence=True, **settings))
    assert drive(engine, ragged(5, gamma=3, **settings)).tokens == record.tokens
    kinds = set()
    for emission in record.emissions:
        known = ~np.isnan(emission.q).any(axis=1)
        drafted = emission.round > 0 or emission.request_id == "r0"
        assert known.all() if drafted else not known.any()
        if not drafted:
            assert emission.kind == (2,)
            continue
        np.testing.assert_allclose(emission.q.sum(axis=1), 1.0, atol=1e-5)
        for row, draft in zip(emission.q, emission.draft, strict=True):
            assert draft == -1 or row[draft] > 0
        kinds |= set(emission.kind)
    assert kinds == {0, 1, 2}


@pytest.mark.parametrize("name", KEPT)
def test_sampled_text_passes_the_strict_test_and_a_fault_does_not(name: str, build: Any) -> None:
    batches = [
        [
            DecodeRequest(
                f"s{i}", (3, 5 + i // 2 % 7, 1), 24, HOT, 900 + i, gamma=gamma, evidence=True
            )
            for i in range(8 * batch, 8 * batch + 8)
        ]
        for batch, gamma in enumerate((1, 3, 1, 3))
    ]
    assert strict_log10_e(build(name), batches) < 3
    assert strict_log10_e(build(name, switches=FAULTS[CAUGHT[name]]), batches) > 3


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
