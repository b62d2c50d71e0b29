"""A draft model without tables of its own: the target's embedding and head rows, nothing copied twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import Incompatible

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EMBED = 97 * 32 * 4
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def without_tables(draft: Path, folder: Path, **entries: Any) -> Path:
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    stored = load_file(draft / "model.safetensors")
    kept = {name: value for name, value in stored.items() if name not in TABLES}
    save_file(kept, folder / "model.safetensors")
    document = json.loads((draft / "config.json").read_text()) | {"shared_rows": True, **entries}
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def opened(target: Path, draft: Path) -> Any:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    options = Options(max_batch=4, max_context=128)
    return load_engine(target, {"kind": "draft_lm"}, draft, version="test", options=options)


def told(engine: Any) -> Any:
    hot = SamplingSettings(temperature=1.0)
    requests = [DecodeRequest(f"r{i}", (i, 5, 9), 16, hot, i, gamma=3) for i in range(4)]
    record = drive(engine, requests)
    return record.tokens, [(r.drafted, r.accepted) for r in record.rounds]


@pytest.mark.parametrize("trimmed", [True, False])
def test_it_drafts_as_with_copies_of_them(
    trimmed: Any, tiny: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    from gatekeeper_adapters.engines.reference.cut import cut_layers

    draft = tiny_draft if trimmed else cut_layers(tiny, [0], None, tmp_path / "whole")
    whole = opened(tiny, draft)
    shared = opened(tiny, without_tables(draft, tmp_path / "shared"))
    assert told(shared) == told(whole)
    weights = shared._proposer._decoder.weights
    assert weights.embed.data_ptr() == shared._decoder.weights.embed.data_ptr()
    layer = weights.layers[0]
    own = sum(part.bytes for part in (layer.qkv, layer.out, layer.gate_up, layer.down))
    ledger = shared.memory()
    assert ledger.draft_weights == own + (weights.head.bytes if trimmed else 0)
    copied = EMBED if trimmed or not weights.head.keeps_original else 0
    assert whole.memory().draft_weights == own + weights.head.bytes + copied


def test_another_vocabulary_or_size_is_refused(
    tiny: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    for place, (entries, field) in enumerate(
        [({"vocab_size": 98}, "proposer.vocab_size"), ({"hidden_size": 40}, "proposer.source")]
    ):
        with pytest.raises(Incompatible) as refused:
            opened(tiny, without_tables(tiny_draft, tmp_path / str(place), **entries))
        assert refused.value.field == field


def test_such_a_draft_is_no_target(tiny_draft: Path, tmp_path: Path) -> None:
    folder = without_tables(tiny_draft, tmp_path / "shared")
    with pytest.raises(Incompatible, match="no model by itself") as refused:
        opened(folder, tiny_draft)
    assert refused.value.field == "target.source"
