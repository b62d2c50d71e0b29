"""Planted quality faults of the torch engine, seen by the outcome gate alone, on a tiny model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shipped_policies import shipped_policy

pytest.importorskip("torch")

from engine_faults import FAULTS
from gatekeeper_adapters.engines.reference.loader import Options, Switches, load_engine
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.verdicts import Outcome
from gatekeeper.load import transcripts
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure
from gatekeeper.workloads.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch
HOT = SamplingSettings(temperature=1.0)
TOKENS = 8
PROMPTS = {
    f"task-{i:02d}": " ".join(f"t{3 + (7 * i + j) % 90}" for j in range(4)) for i in range(40)
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    target = write_tiny_llama(folder / "target", seed=0)
    return target, write_tiny_llama(folder / "draft", seed=5, num_hidden_layers=1)


def build(models: tuple[Path, Path], switches: Switches) -> Any:
    target, draft = models
    options = Options(max_batch=16, max_context=64, switches=switches)
    return load_engine(target, {"kind": "draft_lm"}, draft, version="test", options=options)


def likelihood(engine: Any, prompt: str, text: str) -> float:
    """Mean log-probability of a text under the target alone; minus infinity for no text."""
    tokens = engine.tokenize(text)
    if not tokens:
        return -np.inf
    p = engine.score(engine.tokenize(prompt), tokens, HOT).p
    return float(np.log(p[np.arange(len(tokens)), list(tokens)] + 1e-12).mean())


@pytest.fixture(scope="module")
def tasks(models: tuple[Path, Path]) -> tuple[Task, ...]:
    """Solved by text that the target itself finds as likely as 70 % of its own samples."""
    engine = build(models, Switches())
    requests = [
        DecodeRequest(name, engine.tokenize(text), TOKENS, HOT, seed=i)
        for i, (name, text) in enumerate(PROMPTS.items())
    ]
    own = [
        likelihood(engine, PROMPTS[t.request.request_id], engine.detokenize(t.tokens))
        for t in transcripts(engine, requests, in_flight=4)
    ]
    limit = float(np.quantile(own, 0.3))

    def likely(prompt: str) -> Callable[[str], bool]:
        return lambda text: likelihood(engine, prompt, text) >= limit

    return tuple(Task(name, "copy", text, "", likely(text)) for name, text in PROMPTS.items())


def judge(models: tuple[Path, Path], tasks: tuple[Task, ...], switches: Switches) -> Any:
    demo = Policy.from_dict(shipped_policy("demo"))
    # What speculation costs on a tiny model says nothing; success is what is looked at.
    budget = replace(
        demo.outcome, pairs=160, samples=4, max_tokens=TOKENS, sampling=HOT, max_cost_ratio=100.0
    )
    run = ClaimedRun(
        id="run-1",
        gate="outcome",
        route="route",
        slice="code",
        artifact_digest="d" * 64,
        artifact={"gamma": 4, "engine": {"name": "reference", "device": "cpu"}},
        policy=replace(demo, outcome=budget),
        parameters={},
        attempt=1,
        fence=1,
        cancel_requested=False,
        sampling=(HOT,),
        slo=None,
    )
    ticks = iter(range(10**9))

    def clock() -> float:
        return float(next(ticks))

    engine = build(models, switches)
    return measure(run, engine, Tracker(clock), lambda: False, clock, tasks=tasks).result


def test_an_exact_engine_passes(models: Any, tasks: Any) -> None:
    found = judge(models, tasks, Switches())
    assert found.outcome is Outcome.PASS, found.parts
    assert 0.5 < found.summary["baseline_success"] < 0.9


def test_corrections_from_the_draft_fail(models: Any, tasks: Any) -> None:
    found = judge(models, tasks, FAULTS["correction_from_q"])
    assert found.outcome is Outcome.FAIL
    assert {p.name: p.outcome for p in found.parts}["success"] is Outcome.FAIL
