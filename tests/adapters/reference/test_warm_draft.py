"""A draft that is the target at another temperature: exact without a fault, and each fault shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from engine_faults import FAULTS, warmed
from gatekeeper_adapters.engines.reference.loader import Options, load_engine
from strict_bank import strict_log10_e
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch
HOT = SamplingSettings(temperature=1.0)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


def opened(target: Path, fault: str | None) -> Any:
    return load_engine(
        target,
        {"kind": "draft_lm", "parameters": {}},
        target,
        version="test",
        options=Options(max_batch=8, max_context=64, switches=warmed(fault)),
    )


def batches(count: int) -> list[list[DecodeRequest]]:
    return [
        [
            DecodeRequest(f"{b}-{i}", (1, 9 + b), 48, HOT, seed=100 * b + i, gamma=3, evidence=True)
            for i in range(8)
        ]
        for b in range(count)
    ]


def test_an_honest_warm_draft_is_exact_and_not_always_accepted(target: Path) -> None:
    engine = opened(target, None)
    accepted, drafted = [], []
    step = engine.step

    def counted() -> Any:
        result = step()
        accepted.extend(one.accepted for one in result.rounds)
        drafted.extend(one.drafted for one in result.rounds)
        return result

    engine.step = counted
    assert strict_log10_e(engine, batches(4)) < 3
    assert 0.4 < sum(accepted) / sum(drafted) < 0.9


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_shows_behind_it(target: Path, fault: str) -> None:
    assert strict_log10_e(opened(target, fault), batches(5)) > 3
