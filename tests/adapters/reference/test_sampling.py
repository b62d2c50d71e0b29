from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gatekeeper.core.decoding import SamplingSettings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference.sampling import (  # noqa: E402 - after the skip
    adjust,
    distribution,
    draw,
    processed,
)


def logits(rows: int = 3, vocab: int = 50, seed: int = 0, scale: float = 2.0) -> Any:
    return torch.tensor(
        np.random.default_rng(seed).normal(0, scale, (rows, vocab)), dtype=torch.float32
    )


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(temperature=0.7),
        SamplingSettings(temperature=1.0, top_k=5),
        SamplingSettings(temperature=1.3, top_p=0.8),
        SamplingSettings(temperature=0.9, top_k=20, top_p=0.9),
        SamplingSettings(temperature=1.0, min_p=0.1),
        SamplingSettings(temperature=0.8, top_k=30, top_p=0.95, min_p=0.05, repetition_penalty=1.3),
    ],
)
def test_agrees_with_transformers_processors(settings: SamplingSettings) -> None:
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    history = [4, 9, 9, 30]
    steps: list[Any] = [
        RepetitionPenaltyLogitsProcessor(settings.repetition_penalty),
        TemperatureLogitsWarper(settings.temperature),
    ]
    if settings.top_k:
        steps.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        steps.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        steps.append(MinPLogitsWarper(settings.min_p))
    raw = logits(1)
    expected = torch.softmax(LogitsProcessorList(steps)(torch.tensor([history]), raw.clone()), -1)
    found = processed(raw, settings, history)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_penalties_see_the_tokens_drafted_before_each_row() -> None:
    settings = SamplingSettings(
        temperature=1.0, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25
    )
    raw = logits(3)
    together = adjust(raw, settings, [1, 2, 2], [7, 2])
    for row, history in enumerate(([1, 2, 2], [1, 2, 2, 7], [1, 2, 2, 7, 2])):
        torch.testing.assert_close(together[row], adjust(raw[row : row + 1], settings, history)[0])
    value = float(raw[2, 2])
    scaled = value / 1.5 if value > 0 else value * 1.5
    assert float(together[2, 2]) == pytest.approx(scaled - 0.5 - 0.25 * 3, abs=1e-5)


def test_bias_then_forbidden_then_banned_rows() -> None:
    settings = SamplingSettings(logit_bias=((3, 100.0), (4, 2.5)), forbidden_tokens=(3,))
    raw = logits(3)
    out = adjust(raw, settings, [], [1, 1], banned=(8, 9), banned_rows=2)
    assert torch.isneginf(out[:, 3]).all()
    torch.testing.assert_close(out[:, 4], raw[:, 4] + 2.5)
    assert torch.isneginf(out[:2, 8:10]).all()
    assert torch.isfinite(out[2, 8:10]).all()


def test_the_input_is_never_changed() -> None:
    raw = logits()
    before = raw.clone()
    settings = SamplingSettings(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, presence_penalty=1.0
    )
    processed(raw, settings, [1, 2], [3, 4], banned=(5,), banned_rows=1)
    assert torch.equal(raw, before)


def test_top_p_beyond_the_shortlist_sorts_everything() -> None:
    flat = logits(2, vocab=3000, scale=0.01)
    p = distribution(flat, SamplingSettings(temperature=1.0, top_p=0.9))
    kept = (p > 0).sum(dim=-1)
    assert ((kept > 2600) & (kept < 2750)).all()
    torch.testing.assert_close(p.sum(dim=-1), torch.ones(2))


def test_greedy_is_the_lowest_arg_max() -> None:
    row = torch.tensor([[0.0, 5.0, 5.0, 1.0]])
    assert distribution(row, SamplingSettings()).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_draw_inverts_the_cumulative_sum_and_skips_zeros() -> None:
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])
    assert [draw(weights, u) for u in (0.0, 0.24, 0.25, 0.99, 1.0)] == [1, 1, 3, 3, 3]
