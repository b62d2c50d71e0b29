from __future__ import annotations

from typing import Any

import pytest

from gatekeeper.core.predicted_memory import Capacity, MatrixLayout, predict_memory
from gatekeeper.errors import InputError

TARGET: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 50,
    "tie_word_embeddings": True,
}
LAYER = (8 * 8) + 2 * (8 * 4) + (8 * 8) + 3 * (8 * 12)  # q, k and v, o, gate and up and down
TABLE = 50 * 8
DRAFTER = {**TARGET, "num_hidden_layers": 1, "draft_vocab_size": 10, "shared_rows": True}
ROOM = Capacity(slots=2, positions=100, gamma=3)
KV_LAYER = 2 * 2 * 100 * 2 * 2  # keys and values, slots, positions, heads, size
COPIED = MatrixLayout(copies=2.0, keeps_original=False)


def predicted(proposer: dict[str, Any], draft: Any = None, **changes: Any) -> Any:
    given = {"dtype": "float32", "capacity": ROOM, **changes}
    return predict_memory(TARGET, proposer, draft, **given)


def test_the_target_is_its_matrices_and_what_its_slots_hold() -> None:
    found = predicted({"kind": "ngram"})
    assert found.target_weights == 4 * (3 * LAYER + TABLE)
    assert found.target_kv == 4 * 3 * KV_LAYER
    assert (found.draft_weights, found.draft_kv) == (0, 0)
    assert found.candidates == 2 * 3 * 16
    assert found.workspace == 2 * 4 * 50 * 4
    assert found.complete


def test_copies_for_speed_count_and_then_the_embedding_lies_apart() -> None:
    found = predicted({"kind": "ngram"}, layout=COPIED)
    assert found.target_weights == 4 * (2 * (3 * LAYER + TABLE) + TABLE)
    untied = {**TARGET, "tie_word_embeddings": False}
    apart = predict_memory(untied, {"kind": "ngram"}, dtype="bfloat16", capacity=ROOM)
    assert apart.target_weights == 2 * (3 * LAYER + 2 * TABLE)


def test_inputs_are_filled_up_to_a_block() -> None:
    filled = MatrixLayout(copies=1.0, keeps_original=False, inputs_block=10)
    found = predicted({"kind": "ngram"}, layout=filled, dtype="bfloat16")
    # rows of 8 numbers take 10, the down matrix's of 12 take 20
    layer = 10 * ((8 + 8) + 8 + 2 * 12) + 20 * 8
    assert found.target_weights == 2 * (3 * layer + 50 * 10 + TABLE)


def test_self_speculation_holds_candidates_alone() -> None:
    found = predicted({"kind": "self_speculation", "parameters": {"exit_after": 1}})
    assert found.speculative == found.candidates == 2 * (3 * 16 + 3 * 50 * 4)


def test_greedy_chains_have_no_distributions() -> None:
    section = {"kind": "self_speculation", "parameters": {"exit_after": 1}}
    assert predicted(section, sampled=False).candidates == 2 * 3 * 16


def test_a_corpus_is_a_drafts_weights() -> None:
    assert predicted({"kind": "ngram"}, corpus_bytes=123).draft_weights == 123


@pytest.mark.parametrize("lends", [True, False])
def test_a_draft_model_that_shares_the_targets_rows(lends: Any) -> None:
    found = predicted({"kind": "draft_lm"}, DRAFTER, lends=lends)
    assert found.draft_weights == 4 * (LAYER + 10 * 8 + (0 if lends else TABLE))
    assert found.draft_kv == 4 * KV_LAYER


def test_a_whole_draft_model_shares_nothing() -> None:
    whole = {**TARGET, "num_hidden_layers": 2}
    found = predicted({"kind": "draft_lm"}, whole, layout=COPIED)
    assert found.draft_weights == 4 * (2 * (2 * LAYER + TABLE) + TABLE)
    assert found.draft_kv == 4 * 2 * KV_LAYER


def test_medusa_is_heads_rows_and_a_state_a_slot() -> None:
    drafter = {"heads": 4, "hidden_size": 8, "vocab_size": 50, "draft_vocab_size": 10}
    section = {"kind": "medusa", "parameters": {"heads": 3, "tree": [2, 2, 1]}}
    found = predicted(section, drafter)
    assert found.draft_weights == 4 * (3 * 8 * 8 + 3 * 8 + 10 * 8) + 10 * 8
    assert found.draft_kv == 4 * 2 * 8
    assert found.candidates == 2 * 16 * (2 + 4 + 4)
    assert found.workspace == 2 * (1 + 10) * 50 * 4
    whole = {**drafter, "draft_vocab_size": None}
    assert predicted(section, whole).draft_weights == 4 * (3 * 8 * 8 + 3 * 8)


def test_eagle_draws_at_each_place_of_its_tree() -> None:
    section = {"kind": "eagle", "parameters": {"tree": [2, 1, 1]}}
    found = predicted(section, DRAFTER)
    assert found.draft_weights == 4 * (2 * 8 * 8 + LAYER + 10 * 8)
    assert found.draft_kv == 4 * (KV_LAYER + 2 * 4 * 8)  # states of a whole round wait
    assert found.candidates == 2 * (6 * 16 + 5 * 50 * 4)
    chain = predicted({"kind": "eagle"}, DRAFTER)
    assert chain.candidates == 2 * (3 * 16 + 3 * 50 * 4)


def test_a_dynamic_tree_is_deterministic_and_needs_rows_beside_the_branch() -> None:
    section = {"kind": "eagle2", "parameters": {"depth": 3, "top_k": 2, "nodes": 6}}
    found, chain = predicted(section, DRAFTER), predicted({"kind": "eagle"}, DRAFTER)
    assert found.candidates == 2 * 6 * 16
    assert found.draft_kv > chain.draft_kv
    assert found.draft_weights == chain.draft_weights


@pytest.mark.parametrize(
    ("section", "changes", "field"),
    [
        ({"kind": "ngram"}, {"dtype": "int3"}, "engine.dtype"),
        ({"kind": "undisclosed"}, {}, "proposer.kind"),
        ({"kind": "medusa"}, {}, "proposer.kind"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    section: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        predicted(section, **changes)
    assert refused.value.field == field
