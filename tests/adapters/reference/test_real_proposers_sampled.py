"""SmolLM2-135M-Instruct with every kind of proposer: 2,000 sampled tokens each, judged strictly.

Apart from the greedy checks, so that two processes share the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from real_proposers import GAMMA, KINDS, TREE_OF, load_kinds, short_prompts
from strict_bank import strict_log10_e

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

PLAIN = SamplingSettings(temperature=1.0)
FILTERED = SamplingSettings(temperature=0.7, top_p=0.9, repetition_penalty=1.1)
TAKEN = {"prose": 2, "code": 1, "multilingual": 1}


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Any:
    return load_kinds(smollm2)


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_text_passes_the_strict_test(kind: str, engine: Any) -> None:
    prompts = [p for name, count in TAKEN.items() for p in short_prompts(engine, name, count)]
    batches = [
        [
            DecodeRequest(
                f"s{seed}-{i}",
                prompt,
                63,
                sampling=settings,
                seed=1000 * seed + i,
                gamma=GAMMA,
                evidence=True,
                proposer=proposer,
            )
            for i, prompt in enumerate(prompts)
            for seed in seeds
        ]
        for settings, proposer, seeds in (
            (PLAIN, kind, (1, 2, 3, 4)),
            (FILTERED, TREE_OF.get(kind, kind), (5, 6, 7, 8)),
        )
    ]
    assert sum(r.max_tokens for batch in batches for r in batch) > 2000
    assert strict_log10_e(engine, batches) < 3
