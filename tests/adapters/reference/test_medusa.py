"""Heads on the target's last state: right positions, exact with every rule, and worth proposing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive, ragged
from proposer_cases import CASES, open_case, write_files
from tiny_drafters import TRIMMED, write_tiny_medusa
from tiny_models import write_tiny_llama, write_tokenizer

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HOT = SamplingSettings(temperature=1.0)
NARROW = SamplingSettings(logit_bias=((6, 4.0), (8, -4.0)), forbidden_tokens=(4, 10))
END = (2, 6, 31, 40, 55)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target, heads = write_files("medusa", tmp_path_factory.mktemp("medusa"))
    assert heads is not None
    return target, heads


@pytest.fixture(scope="module")
def build(models: tuple[Path, Path]) -> Callable[..., Any]:
    def make(parameters: Any = None, **options: Any) -> Any:
        files = options.pop("target", models[0]), options.pop("heads", models[1])
        if parameters is not None:
            options["parameters"] = parameters
        return open_case(CASES["medusa counts"], files, **options)

    return make


class Watched:
    """Every tree proposed, with the text it was proposed below."""

    def __init__(self, engine: Any) -> None:
        self.proposed: list[tuple[list[int], int, Any]] = []
        propose = engine._proposer.propose

        def watching(windows: Any) -> Any:
            found = propose(windows)
            self.proposed += [
                (list(sequence.tokens), gamma, tree)
                for (sequence, gamma), tree in zip(windows, found, strict=True)
            ]
            return found

        engine._proposer.propose = watching


@pytest.fixture(scope="module")
def ordinary(models: tuple[Path, Path]) -> tuple[Any, Path]:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(models[0], dtype=torch.float32), models[1]


def head_tokens(model: Any, heads: Path, text: list[int], count: int) -> list[list[int]]:
    """The ranking of each head after a text, from the formula and transformers' own states."""
    from gatekeeper_adapters.engines.reference.drafter import read_tensors

    stored = read_tensors(heads)
    with torch.inference_mode():
        out = model(torch.tensor([text[:-1]]), output_hidden_states=True)
        h = out.hidden_states[-1][0, -1]
        rows = model.lm_head.weight[stored["d2t"]]
        ranked = []
        for k in range(count):
            s = h + torch.nn.functional.silu(
                stored[f"heads.{k}.weight"] @ h + stored[f"heads.{k}.bias"]
            )
            ranked.append(stored["d2t"][(rows @ s).argsort(descending=True)].tolist())
    return ranked


def test_candidates_are_the_heads_best_at_the_right_positions(
    build: Any, ordinary: tuple[Any, Path]
) -> None:
    engine = build(CASES["medusa paths"].parameters)
    watched = Watched(engine)
    record = drive(engine, ragged(4, gamma=2, tokens=9, sampling=HOT))
    assert {r.accepted for r in record.rounds} > {0}
    seen = 0
    for text, gamma, tree in watched.proposed:
        if not tree.tokens:
            continue
        seen += 1
        ranks = [(0,), (2,), (5,), (0, 0), (0, 3), (2, 1)]
        kept = [rank for rank in ranks if len(rank) <= gamma]
        best = head_tokens(*ordinary, text, 2)
        assert tree.tokens == tuple(best[len(rank) - 1][rank[-1]] for rank in kept)
        assert tree.parents == (-1, -1, -1, 0, 0, 1)[: len(kept)]
        assert not tree.q
    assert seen > 10


def test_the_prompts_end_is_cached_without_a_proposal(build: Any) -> None:
    record = drive(build(prefill_chunk=16), ragged(4, gamma=3))
    first = {r.request_id: r.drafted for r in record.rounds if r.index == 0}
    assert first == dict.fromkeys(("r0", "r1", "r2", "r3"), 0)
    later = [r for r in record.rounds if r.index > 0 and r.context + 4 < 20]
    assert later
    assert all(r.drafted == 3 for r in later)


def test_a_lone_last_prompt_token_has_the_state_before_it(build: Any) -> None:
    """Pieces of 16, so the last token of 17 is cached alone, when the state before it is known."""
    request = DecodeRequest("a", tuple(range(17)), 5, gamma=2)
    record = drive(build(prefill_chunk=16), [request])
    assert record.rounds[0].drafted == 2
    alone = DecodeRequest("a", tuple(range(17)), 5)
    assert record.tokens == drive(build(), [alone]).tokens


def test_states_that_were_not_told_propose_nothing(build: Any) -> None:
    engine = build()
    learn = engine._proposer.learn
    engine._proposer.learn = lambda sequence, start, states: (
        learn(sequence, start, states) if sequence.rounds % 2 else None
    )
    record = drive(engine, ragged(2, gamma=3, tokens=12))
    assert record.tokens == drive(build(), ragged(2, gamma=0, tokens=12)).tokens
    assert {r.drafted for r in record.rounds if r.index > 0} == {0, 3}


class OnlySome:
    """A grammar where each token settles which third of the ids may follow it."""

    complete = lost = False

    def allowed(self, path: Sequence[int]) -> Any:
        ids = torch.arange(97)
        return ids % 3 == (path[-1] + 1) % 3 if path else ids % 3 != 1

    def permitted(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def length(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        del tokens


def test_impossible_tokens_are_not_proposed_and_the_next_best_take_their_place(
    build: Any, ordinary: tuple[Any, Path]
) -> None:
    engine = build()
    watched = Watched(engine)
    settings = {"sampling": NARROW, "end_tokens": END, "min_tokens": 50}
    drive(engine, ragged(3, gamma=3, **settings))
    never = {4, 10, *END}
    full = [tree for text, gamma, tree in watched.proposed if gamma == 3 and tree.tokens]
    assert full
    assert all(len(tree.tokens) == 15 for tree in full)
    assert not never & {token for tree in full for token in tree.tokens}
    text, _, tree = next(entry for entry in watched.proposed if entry[2].tokens)
    possible = [t for t in head_tokens(*ordinary, text, 1)[0] if t not in never]
    assert set(tree.tokens[:3]) <= set(possible[:4])  # 6 is favoured, 8 is not


def test_each_context_is_ranked_by_the_rules_of_its_path(build: Any) -> None:
    engine = build()
    watched = Watched(engine)
    engine.submit(DecodeRequest("g", (2, 4, 6), 30, gamma=3))
    engine.step()
    engine._scheduler.active["g"].grammar = OnlySome()
    for _ in range(5):
        engine.step()
    proposed = [tree for _, gamma, tree in watched.proposed[1:] if gamma == 3]
    assert len(proposed) > 2
    for tree in proposed:
        assert len(tree.tokens) == 15
        for context, below in enumerate(tree.children):
            path, node = [], context - 1
            while node >= 0:
                path.insert(0, tree.tokens[node])
                node = tree.parents[node]
            tokens = [tree.tokens[child] for child in below]
            assert all(OnlySome().allowed(path)[token] for token in tokens)
            assert len(set(tokens)) == len(tokens)


def test_where_less_is_possible_the_tree_is_smaller(build: Any) -> None:
    engine = build()
    watched = Watched(engine)
    allowed = (2, 8)
    forbidden = tuple(token for token in range(97) if token not in allowed)
    sampling = SamplingSettings(forbidden_tokens=forbidden)
    request = DecodeRequest("f", (5, 6), 12, sampling, gamma=3)
    record = drive(engine, [request])
    alone = DecodeRequest("f", (5, 6), 12, sampling)
    assert record.tokens == drive(build(), [alone]).tokens
    sizes = {len(tree.tokens) for _, gamma, tree in watched.proposed if gamma == 3}
    assert sizes == {0, 2 + 4 + 4}


def test_evidence_tells_of_every_candidate_and_of_the_next_head_at_a_bonus(build: Any) -> None:
    engine = build({"heads": 3, "tree": [2, 2]})
    record = drive(engine, ragged(5, gamma=2, sampling=HOT, evidence=True))
    assert drive(engine, ragged(5, gamma=2, sampling=HOT)).tokens == record.tokens
    kinds = set()
    for emission in record.emissions:
        if emission.round == 0:
            assert np.isnan(emission.q).all()
            continue
        np.testing.assert_allclose(emission.q.sum(axis=1), 1.0, atol=1e-6)
        for row, draft, kind in zip(emission.q, emission.draft, emission.kind, strict=True):
            assert np.count_nonzero(row) == (1 if kind == 2 else 2)
            assert draft == -1 if kind == 2 else row[draft] > 0
        kinds |= set(emission.kind)
    assert kinds == {0, 1, 2}


def test_the_ledger_counts_heads_rows_and_states(build: Any, models: tuple[Path, Path]) -> None:
    engine = build()
    for request in ragged(4, gamma=3, sampling=HOT):
        engine.submit(request)
    for _ in range(3):
        engine.step()
    ledger = engine.memory()
    heads = engine._proposer._heads
    small = 3 * 32 * 4 + len(TRIMMED) * 8
    assert ledger.draft_weights == heads.mix.bytes + heads.rows.bytes + small
    assert heads.mix.bytes >= 3 * 32 * 32 * 4
    assert heads.rows.bytes >= len(TRIMMED) * 32 * 4
    assert ledger.draft_kv == 4 * 32 * 4
    assert ledger.candidates == 4 * 15 * 16
    assert ledger.complete
    whole = write_tiny_medusa(models[1].parent / "whole", models[0])
    shared = build(heads=whole).memory()
    assert shared.draft_weights == heads.mix.bytes + 3 * 32 * 4  # the head's rows are the target's


def test_int8_heads_are_multiplied_out(
    build: Any, models: tuple[Path, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    stored = load_file(models[1] / "model.safetensors")
    exact = build()._proposer._heads
    for k in range(3):
        name = f"heads.{k}.weight"
        scale = stored[name].abs().amax(dim=1) / 127
        stored[f"{name}.scale"] = scale
        stored[name] = (stored[name] / scale[:, None]).round().to(torch.int8)
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((models[1] / "config.json").read_text())
    small = build(heads=tmp_path)._proposer._heads
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    one, other = exact.logits(states, 3), small.logits(states, 3)
    assert not torch.equal(one, other)
    assert float((one - other).abs().max() / one.std()) < 0.1


def changed(folder: Path, original: Path, entries: dict[str, Any]) -> Path:
    folder.mkdir()
    document = json.loads((original / "config.json").read_text()) | entries
    (folder / "config.json").write_text(json.dumps(document))
    (folder / "model.safetensors").write_bytes((original / "model.safetensors").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "proposer.source"),
        ({"vocab_size": 98}, "proposer.vocab_size"),
        ({"hidden_size": 64}, "proposer.source"),
        ({"heads": 4}, "proposer.source"),
        ({"draft_vocab_size": 97}, "proposer.token_map"),
    ],
)
def test_heads_of_another_target_are_refused(
    entries: dict[str, Any], field: str, build: Any, models: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(Incompatible) as refused:
        build(heads=changed(tmp_path / "heads", models[1], entries))
    assert refused.value.field == field
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"heads": 4}, "proposer.parameters.heads"),
        ({"heads": 0}, "proposer.parameters.heads"),
        ({"heads": 2, "tree": [2, 1, 1]}, "proposer.parameters.tree"),
        ({"tree": [2, 1, 1, 1]}, "proposer.parameters.tree"),
        ({"tree": [[len(TRIMMED)]]}, "proposer.parameters.tree"),
        ({"tree": "wide"}, "proposer.parameters.tree"),
        ({"depth": 2}, "proposer.parameters.depth"),
    ],
)
def test_unsuitable_parameters_are_refused_with_a_remedy(
    parameters: dict[str, Any], field: str, build: Any
) -> None:
    with pytest.raises(InputError) as refused:
        build(parameters)
    assert refused.value.field == field
    assert refused.value.remedy


def test_a_target_of_another_architecture_lends_its_rows_too(build: Any, tmp_path: Path) -> None:
    import transformers

    config = transformers.Qwen2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.35,
        head_dim=8,
    )
    torch.manual_seed(1)
    target = tmp_path / "qwen2"
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(target)
    document = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({"rope_theta": 10000.0} | document))
    write_tokenizer(target, 97)
    heads = write_tiny_medusa(tmp_path / "heads", target, ids=TRIMMED)
    engine = build({"tree": [8, 4]}, target=target, heads=heads)
    assert engine.info.details["forward"] == "SlotDecoder"
    record = drive(engine, ragged(4, gamma=2))
    assert record.tokens == drive(engine, ragged(4, gamma=0)).tokens
    assert max(r.accepted for r in record.rounds) > 0


def test_a_target_whose_tables_are_not_found_is_refused(build: Any, tmp_path: Path) -> None:
    import transformers

    config = transformers.GPTNeoXConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    target = tmp_path / "neox"
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(target)
    write_tokenizer(target, 97)
    heads = write_tiny_medusa(tmp_path / "heads", write_tiny_llama(tmp_path / "shape"), ids=TRIMMED)
    with pytest.raises(Incompatible, match=r"embed_tokens") as refused:
        build(target=target, heads=heads)
    assert refused.value.field == "target.source"
