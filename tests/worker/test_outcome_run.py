"""The outcome gate on FakeEngine: a sampler's fault that users would notice, found by tasks."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from shipped_policies import shipped_policy

from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.equations import verify
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError
from gatekeeper.gates import outcome
from gatekeeper.testing import Costs, FakeEngine, VirtualClock
from gatekeeper.worker.measured import Cancelled
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure
from gatekeeper.workloads import tasks as task_suite
from gatekeeper.workloads.tasks import Task

COSTS = Costs(draft_token_s=0.001, verify_s=0.02, prefill_token_s=0.002, jitter=0.05)
EXPECTED = 14


def policy(**changes: Any) -> Policy:
    demo = Policy.from_dict(shipped_policy("demo"))
    settled: dict[str, Any] = {
        "pairs": 160,
        "samples": 4,
        "margin": 0.2,
        "max_tokens": 6,
        "sampling": SamplingSettings(temperature=1.0),
    }
    return replace(demo, outcome=replace(demo.outcome, **(settled | changes)))


def claimed(**changes: Any) -> ClaimedRun:
    given: dict[str, Any] = {
        "id": "run-1",
        "gate": "outcome",
        "route": "route",
        "slice": "code",
        "artifact_digest": "d" * 64,
        "artifact": {"gamma": 4, "engine": {"name": "fake", "device": "cpu"}},
        "policy": policy(),
        "parameters": {},
        "attempt": 1,
        "fence": 1,
        "cancel_requested": False,
        "sampling": (SamplingSettings(),),
        "slo": None,
    }
    return ClaimedRun(**(given | changes))


def build(clock: VirtualClock, **changes: Any) -> FakeEngine:
    given = {"costs": COSTS, "spend": clock.advance, "agreement": 0.3, "end_tokens": (31,)}
    return FakeEngine(**(given | changes))


def tasks_of(engine: FakeEngine) -> tuple[Task, ...]:
    """Solved by text in which every token is one of the target's usual successors of the last."""
    usual = np.argsort(-engine._target, axis=1)[:, :EXPECTED]

    def plausible(text: str) -> bool:
        ids = [int(token) for token in re.findall(r"<(\d+)>", text)]
        return all(b in usual[a] for a, b in itertools.pairwise(ids))

    return tuple(
        Task(f"task-{i:02d}", ("copy", "tool")[i % 2], "x" * (3 + i), "", plausible)
        for i in range(50)
    )


def run(run_: ClaimedRun | None = None, **changes: Any) -> Any:
    clock = VirtualClock()
    engine = build(clock, **changes)
    return measure(
        run_ or claimed(), engine, Tracker(clock), lambda: False, clock, tasks=tasks_of(engine)
    )


def pairs(measured: Any) -> pd.DataFrame:
    return pd.read_parquet(io.BytesIO(measured.files["pairs"]))


def test_an_exact_engine_passes_and_costs_less_per_success() -> None:
    found = run(agreement=0.8).result
    assert found.outcome is Outcome.PASS, found.parts
    assert 0.2 < found.summary["baseline_success"] < 0.9
    assert found.summary["cost_per_success"]["high"] < 1
    assert found.summary["gamma"] == 4
    assert found.summary["n"] == 160


def test_corrections_from_the_draft_make_tasks_fail() -> None:
    found = run(fault="correction_from_q", agreement=0.05).result
    assert found.outcome is Outcome.FAIL
    assert {p.name: p.outcome for p in found.parts}["success"] is Outcome.FAIL


def test_a_drafter_that_sleeps_makes_success_too_expensive() -> None:
    slow = replace(COSTS, draft_round_s=0.2)
    found = run(costs=slow).result
    parts = {p.name: p.outcome for p in found.parts}
    assert parts == {"success": Outcome.PASS, "cost": Outcome.FAIL}


def test_answers_that_no_verifier_takes_prove_nothing() -> None:
    clock = VirtualClock()
    engine = build(clock, max_context=1024)
    small = claimed(policy=policy(pairs=120, samples=1))
    measured = measure(small, engine, Tracker(clock), lambda: False, clock)
    assert measured.result.outcome is Outcome.INCONCLUSIVE
    assert measured.result.summary["suite"] == task_suite.digest()
    assert set(pairs(measured)["task"]) == {task.id for task in task_suite.suite()}


def test_verdict_and_claims_follow_from_the_uploaded_bytes() -> None:
    measured = run()
    table = pairs(measured)
    assert set(measured.files) == set(outcome.TABLES)
    assert outcome.evaluate(policy().outcome, {"pairs": table}) == measured.result
    checked = verify(measured.result.claims, lambda name, _: {"pairs": table}[name])
    assert [c.reason for c in checked if not c.agrees] == []
    assert len(checked) > 15


def test_costs_are_the_engines_busy_time() -> None:
    clock = VirtualClock()
    engine = build(clock)
    measured = measure(
        claimed(), engine, Tracker(clock), lambda: False, clock, tasks=tasks_of(engine)
    )
    table = pairs(measured)
    spent = table["baseline_cost"].sum() + table["candidate_cost"].sum()
    assert 0.9 * clock() < spent < clock()  # the rest is the warm-up


def test_the_load_comes_with_the_run() -> None:
    found = run(claimed(parameters={"gamma": 2, "concurrency": 1, "seed": 5}))
    table = pairs(found)
    assert (set(table["gamma"]), set(table["concurrency"])) == ({2}, {1})
    (counts,) = found.acceptance
    assert (counts["gamma"], counts["concurrency"], counts["slice"]) == (2, 1, "tasks")
    assert 0 < counts["accepted"] < counts["drafted"]
    assert not table.equals(pairs(run()))


def test_the_end_token_is_no_part_of_the_answer() -> None:
    table = pairs(run())
    answers = pd.concat([table["baseline_answer"], table["candidate_answer"]])
    assert not answers.str.contains("<31>").any()
    assert (table["baseline_tokens"] <= 6).all()
    ended = table["baseline_answer"].str.count("<") < table["baseline_tokens"]
    assert ended.any()


def test_tasks_that_do_not_fit_are_left_out() -> None:
    clock = VirtualClock()
    engine = build(clock, max_context=50)
    found = pairs(
        measure(claimed(), engine, Tracker(clock), lambda: False, clock, tasks=tasks_of(engine))
    )
    assert found["task"].max() <= "task-41"
    with pytest.raises(InputError, match="tasks"):
        run(claimed(policy=policy(pairs=160, samples=2)))


@pytest.mark.parametrize("after", [0, 5, 400])
def test_cancelling_leaves_nothing_and_frees_the_engine(after: int) -> None:
    asked = iter([False] * after)
    clock = VirtualClock()
    engine = build(clock)
    with pytest.raises(Cancelled):
        measure(
            claimed(),
            engine,
            Tracker(clock),
            lambda: next(asked, True),
            clock,
            tasks=tasks_of(engine),
        )
    assert engine.step().emitted == ()


def test_progress_counts_blocks_and_successes() -> None:
    clock = VirtualClock()
    seen: list[Any] = []
    engine = build(clock)
    measure(
        claimed(), engine, Tracker(clock, seen.append), lambda: False, clock, tasks=tasks_of(engine)
    )
    assert (seen[0].phase, seen[0].done, seen[0].total) == ("outcome", 0, 80)
    assert seen[-1].done == 80
    assert "of 320 answers succeeded" in seen[-1].note
