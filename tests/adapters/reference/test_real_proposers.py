"""SmolLM2-135M-Instruct with every kind of proposer: greedy text at batch 1, 3 and 8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive
from real_proposers import GAMMA, KINDS, load_kinds, short_prompts

from gatekeeper import workloads
from gatekeeper.core.decoding import DecodeRequest

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

TAKEN = {"prose": 3, "code": 3, "multilingual": 2, "tool_calls": 2}
LEAST = {"self_speculation": 0.5}
"""First draft tokens accepted: what a draft that misses its context would not reach; .1 elsewhere."""


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Any:
    return load_kinds(smollm2)


def asked(engine: Any, kind: str | None) -> list[DecodeRequest]:
    prompts = [p for name, count in TAKEN.items() for p in short_prompts(engine, name, count)]
    gamma = GAMMA if kind else 0
    return [
        DecodeRequest(f"r{i}", prompt, 32, gamma=gamma, proposer=kind)
        for i, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def ordinary(engine: Any) -> dict[str, list[int]]:
    return drive(engine, asked(engine, None)).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_the_targets_at_batch_1_3_and_8(
    kind: str, engine: Any, ordinary: dict[str, list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[Any] = []
    for size in (1, 3, 8):
        wanted, tokens = asked(engine, kind), {}
        for start in range(0, len(wanted), size):
            done = drive(engine, wanted[start : start + size])
            tokens |= done.tokens
            rounds += done.rounds
        assert tokens == ordinary, f"{kind} at batch {size}"
    drafted = [r for r in rounds if r.drafted]
    rate = sum(r.accepted > 0 for r in drafted) / len(drafted)
    length = sum(r.committed for r in rounds) / len(rounds)
    with capsys.disabled():
        print(f"\n{kind}: first token accepted {rate:.2f}, {length:.2f} tokens a round")  # noqa: T201 - wanted
    assert rate > LEAST.get(kind, 0.1)


def test_long_context_prompts_are_as_long_as_they_say(engine: Any) -> None:
    sizes = [len(engine.tokenize(p.text)) for p in workloads.prompts("long_context")]
    assert min(sizes) >= 500
    assert max(sizes) <= 1000
