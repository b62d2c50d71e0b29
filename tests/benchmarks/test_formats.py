"""Numerical formats and distributed sums: the report on a tiny model, and a sum that loses a part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from benchmark_scripts import script
from sharded_llama import Format, ShardedLlama, judge
from tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch
FP32, BF16 = "float32, KV float32, tensor parallel", "bfloat16, KV bfloat16, tensor parallel"
MIXED = "float32, KV bfloat16, tensor parallel"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), vocab=97)


@pytest.fixture(scope="module")
def found(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("ranks")
    return {
        row.other: row for row in script("formats").report(model, scratch, prompts=2, tokens=12)
    }


def test_the_forward_is_the_engines_independent_scorer(model: Path) -> None:
    from gatekeeper_adapters.engines.reference.model import load_llama
    from gatekeeper_adapters.engines.reference.scoring import DenseLlama

    weights = load_llama(model, dtype=torch.float32, device="cpu")
    assert weights is not None
    text = [5, 17, 3, 80, 41, 9]
    with torch.inference_mode():
        expected = DenseLlama(weights).logits([1, 2, 3, *text[:-1]], len(text))
        own = judge(ShardedLlama(model, Format("float32", "float32")), [1, 2, 3], text)
    assert torch.allclose(own, expected, atol=1e-4)


def test_every_format_is_compared_with_itself_and_with_the_first(found: dict[str, Any]) -> None:
    names = {f"{name} {ranks}" for name in (FP32, MIXED, BF16) for ranks in (1, 2)}
    assert set(found) == {f"{name}: windows" for name in names} | names - {f"{FP32} 1"}
    for row in found.values():
        assert row.positions == 24
        assert row.outcome == "PASS", row
        assert row.faults == 0
        assert row.largest <= row.tau or row.bitwise


def test_float32_agrees_to_rounding_on_one_rank_and_on_two(found: dict[str, Any]) -> None:
    split = found[f"{FP32} 2"]
    assert not split.bitwise  # two partial sums are added in another order
    assert 0 < split.sigma < 1e-5
    assert split.largest <= split.tau < 1e-3
    for ranks in (1, 2):
        assert found[f"{FP32} {ranks}: windows"].differing == 0


def test_coarser_formats_differ_by_what_their_digits_hold(found: dict[str, Any]) -> None:
    fine, mixed, coarse = (found[f"{name} 2"].sigma for name in (FP32, MIXED, BF16))
    assert fine < 0.1 * mixed
    assert mixed < coarse < 0.2
    assert found[f"{MIXED} 1"].sigma > 1e-4


def test_a_sum_that_loses_a_part_is_a_fault_and_no_tie(model: Path, tmp_path: Path) -> None:
    formats = script("formats")
    formats.FORMATS = (formats.FORMATS[0], Format("float32", "float32", 2))
    rows = {r.other: r for r in formats.report(model, tmp_path, prompts=2, tokens=12, lost=9)}
    broken = rows[f"{FP32} 2"]
    assert broken.outcome == "FAIL"
    assert broken.faults > 0
    assert broken.largest > broken.tau
