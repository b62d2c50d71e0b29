"""SmolLM2-135M-Instruct drafts for itself: greedy text at batch 1 and 3, sampled text, acceptance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive
from strict_bank import strict_log10_e

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model

ASKED = (
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that reverses a list.",
    "Tell a short story about a lighthouse keeper.",
)
WINDOW = 2
LEAST = {"skip": 0.5, "exit": 0.15}
"""Acceptance that a draft which misses its context would not reach."""

PARAMETERS = {"skip": {"skip_layers": [14, 15]}, "exit": {"exit_after": 26}}


@pytest.fixture(scope="module", params=PARAMETERS)
def running(request: pytest.FixtureRequest, smollm2: Path) -> tuple[str, Any]:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    engine = load_engine(
        smollm2,
        {"kind": "self_speculation", "parameters": PARAMETERS[request.param]},
        version="test",
        options=Options(max_batch=3, max_context=128),
    )
    return request.param, engine


def asked(engine: Any, gamma: int, tokens: int = 24, **changes: Any) -> list[DecodeRequest]:
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in ASKED]
    return [
        DecodeRequest(f"r{i}", engine.tokenize(chat), tokens, gamma=gamma, **changes)
        for i, chat in enumerate(chats)
    ]


def acceptance(rounds: list[Any]) -> float:
    """First draft token of a window accepted."""
    drafted = [r for r in rounds if r.drafted]
    return sum(r.accepted > 0 for r in drafted) / len(drafted)


def test_greedy_text_is_the_targets_at_batch_1_and_3(
    running: tuple[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    name, engine = running
    ordinary = drive(engine, asked(engine, 0)).tokens
    together = drive(engine, asked(engine, WINDOW))
    assert together.tokens == ordinary
    alone: dict[str, list[int]] = {}
    for request in asked(engine, WINDOW):
        alone |= drive(engine, [request]).tokens
    assert alone == ordinary
    rate = acceptance(together.rounds)
    with capsys.disabled():
        print(f"\n{name}: first draft token accepted {rate:.2f}")  # noqa: T201 - the figure is wanted
    assert rate > LEAST[name]
    assert (engine.memory().draft_weights, engine.memory().draft_kv) == (0, 0)


def test_sampled_text_passes_the_strict_test(running: tuple[str, Any]) -> None:
    _, engine = running
    settings = SamplingSettings(temperature=0.8, top_p=0.95)
    batches = [
        [
            replace(r, request_id=f"{r.request_id}-{seed}")
            for r in asked(engine, WINDOW, seed=seed, sampling=settings, evidence=True)
        ]
        for seed in (1, 2, 3, 4)
    ]
    assert strict_log10_e(engine, batches) < 3
