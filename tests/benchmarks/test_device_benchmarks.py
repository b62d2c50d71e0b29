"""Benchmarks that time parts of the engine: their arithmetic, and that they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from benchmark_scripts import script
from tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_contention_is_what_turns_take_more_than_running_alone() -> None:
    now, last = 0.0, ""

    def forward(name: str, seconds: float) -> Any:
        def run() -> None:
            nonlocal now, last
            # whoever follows the other finds its caches cold
            now += seconds * (1.0 if last in {"", name} else 1.5)
            last = name

        return run

    found = script("contention").contention(
        {"target": forward("target", 4.0), "draft": forward("draft", 1.0)},
        clock=lambda: now,
        repeats=5,
    )
    assert found["target"] == {"alone_s": 4.0, "turns_s": 6.0, "ratio": 1.5}
    assert found["draft"] == {"alone_s": 1.0, "turns_s": 1.5, "ratio": 1.5}


def test_contention_of_two_models_is_measured(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "target", max_position_embeddings=512)
    draft = write_tiny_llama(tmp_path / "draft", num_hidden_layers=1, max_position_embeddings=512)
    found = script("contention").measure(target, draft, "float32", "cpu", gamma=2, repeats=3)
    assert set(found) == {"batch 1", "batch 8"}
    assert all(part["alone_s"] > 0 for parts in found.values() for part in parts.values())


def test_recording_is_a_part_of_a_step(tmp_path: Path) -> None:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    recording = script("recording")
    target = write_tiny_llama(tmp_path / "target")
    options = Options(max_batch=2, max_context=200)
    engine = load_engine(target, {"kind": "ngram"}, version="t", options=options)
    found = recording.measure(engine, steps=5)
    assert len(found) == 4
    for row in found.values():
        assert 0 < row["round_us"] < row["step_us"]
        assert row["share"] < 1  # of steps that compute next to nothing
    # every slot is free again
    assert engine.step().finished == ()
