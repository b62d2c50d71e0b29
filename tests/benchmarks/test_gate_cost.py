"""What judging costs beside decoding: every part is timed. How much is for ``make verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from benchmark_scripts import script
from gatekeeper_adapters.engines.reference.loader import Options, load_engine
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import TokenPrompt

if TYPE_CHECKING:
    from pathlib import Path

ARTIFACT = {
    "gamma": 4,
    "acceptance": {"method": "standard", "contract": "exact"},
    "proposer": {"kind": "draft_lm"},
}
PARTS = ["generation", "q at the bonus", "scoring", "bank"]


@pytest.mark.torch
def test_every_part_is_timed_a_token(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "target")
    draft = write_tiny_llama(tmp_path / "draft", num_hidden_layers=1)
    engine = load_engine(
        target,
        {"kind": "draft_lm", "parameters": {}},
        draft,
        version="test",
        options=Options(max_batch=4, max_context=128),
    )
    prompts = [TokenPrompt(f"p{i}", "prose", (1, 5 + i, 9)) for i in range(4)]
    found = script("gate_cost").cost(engine, ARTIFACT, prompts, requests=4, tokens=16)
    assert list(found["ms_per_token"]) == PARTS
    assert found["tokens"] <= 64
    generation, shown, scoring, bank = found["ms_per_token"].values()
    assert min(generation, scoring, bank) > 0
    whole = (generation + shown + scoring + bank) / generation
    assert found["ratio"] == pytest.approx(whole, rel=0.01)
    assert found["holds"] == (found["ratio"] <= 2)
