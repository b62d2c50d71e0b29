"""The drafters that travel with the package are what their configs say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from gatekeeper_adapters.engines.reference.convert import describe, prepare
from gatekeeper_adapters.engines.reference.sources import DRAFTERS, SMOLLM2
from gatekeeper_adapters.engines.reference.training import KINDS

from gatekeeper import workloads

LARGEST_BYTES = 10_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_shipped_drafter_is_whole_small_and_better_than_bigrams(kind: str) -> None:
    folder = prepare(f"shipped:{kind}", Path("unused"))
    assert folder == DRAFTERS / kind
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST_BYTES
    config = json.loads((folder / "config.json").read_text())
    section = describe(f"shipped:{kind}", folder)
    assert section["tokenizer"] == config["tokenizer"]
    assert section["vocab_size"] == config["draft_vocab_size"]
    made = config["provenance"]
    assert made["target"]["source"] == SMOLLM2
    judged = made["held_out"]
    drafter, bigram = (
        judged[name][0] for name in ("conditional_acceptance", "bigram_conditional_acceptance")
    )
    assert drafter >= bigram + 0.1
    assert judged["windows"][0] == judged["bigram_windows"][0]


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_its_token_map_is_the_one_in_the_file(kind: str) -> None:
    pytest.importorskip("torch")
    from safetensors import safe_open

    config = json.loads((DRAFTERS / kind / "config.json").read_text())
    with safe_open(DRAFTERS / kind / "model.safetensors", framework="pt") as file:
        ids = file.get_tensor("d2t").numpy()
    assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest() == config["token_map"]


def test_no_held_out_prompt_is_one_it_learned_from() -> None:
    lists = [
        json.loads((DRAFTERS / kind / "config.json").read_text())["provenance"]["data"][
            "held_out_prompts"
        ]
        for kind in KINDS
    ]
    assert lists[0] == lists[1] == lists[2]
    known = {prompt.id for name in workloads.SLICES for prompt in workloads.prompts(name)}
    assert set(lists[0]) <= known
