"""The agent in both arms: tasks paired by number, arms in random order, then what that shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.cli.demo.agent_task import BRANCH, STEP_ATTRIBUTE
from gatekeeper.core.claims import Claim
from gatekeeper.core.stats.prediction import (
    PairedTasks,
    compare,
    comparison_claims,
    decode_ratio,
    mean,
)
from gatekeeper.core.task_prediction import predict_saving
from gatekeeper.core.task_profile import profile_task
from gatekeeper.errors import EvidenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from gatekeeper.cli.demo.agent_task import Agent, TaskRun, TaskWork
    from gatekeeper.core.stats.prediction import Comparison
    from gatekeeper.core.task_prediction import Speedup
    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.traces import Trace

__all__ = ["ARMS", "AgentResult", "evaluate", "run_agent"]

ARMS = ("baseline", "candidate")
"""Ordinary decoding, and the route's windows: values of ``gatekeeper.arm``."""

_NS = 10**9


def run_agent(
    agent: Agent,
    works: Sequence[TaskWork],
    *,
    gammas: Mapping[int, int],
    seed: int,
    note: Callable[[int, str], None] = lambda _done, _line: None,
) -> dict[tuple[int, str], TaskRun]:
    """Run every task in both arms; the order of the arms is drawn for each task.

    ``gammas`` is the candidate's window by concurrency, as a lease has it; ``note`` hears how many task runs are done, and what was done last. Spans are sent after each
    run, outside its measured time.

    Raises:
        Unavailable: the engine stopped, or the collector did not take the spans.
    """
    rng = np.random.default_rng(seed)
    runs: dict[tuple[int, str], TaskRun] = {}
    for work in works:
        for place in rng.permutation(len(ARMS)).tolist():
            arm = ARMS[place]
            began = agent.now_ns()
            used = {} if arm == ARMS[0] else gammas
            runs[work.number, arm] = agent.run_task(work, arm=arm, gammas=used)
            took = (agent.now_ns() - began) / _NS
            agent.spans.flush()
            note(len(runs), f"task {work.number + 1} of {len(works)}, {arm}: {took:.1f} s")
    return runs


@dataclass(frozen=True)
class AgentResult:
    """What the two arms showed. ``comparison`` is None where no task could be compared.

    ``rows`` has one JSON-able entry per task; ``problems`` says why tasks were left out;
    ``decode_ratio`` is the decode time of the baseline's calls over that of the candidate's.
    """

    rows: tuple[dict[str, Any], ...]
    comparison: Comparison | None
    claims: tuple[Claim, ...]
    problems: tuple[str, ...]
    decode_ratio: float | None
    wall_s: float | None
    ceiling_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; seconds are means per task, None where unknown."""
        found = self.comparison
        observed = None if found is None else found.observed
        return {
            "predicted_s": found
            and {
                "value": found.predicted,
                "low": found.predicted_low,
                "high": found.predicted_high,
            },
            "observed_s": observed
            and {"value": observed.mean, "low": observed.low, "high": observed.high},
            "confidence": observed and observed.confidence,
            "widening_s": found and found.widening,
            "agrees": found and found.agrees,
            "baseline_wall_s": self.wall_s,
            "ceiling_s": self.ceiling_s,
            "decode_ratio": self.decode_ratio,
            "tasks": list(self.rows),
            "problems": list(self.problems),
            "claims": [claim.to_dict() for claim in self.claims],
        }


def evaluate(
    traces: Mapping[str, Trace],
    runs: Mapping[tuple[int, str], TaskRun],
    speedups: Sequence[Speedup],
    *,
    route: str,
    run: str,
    confidence: float = 0.95,
) -> AgentResult:
    """Compare what the baseline's traces predict with what the two arms took.

    Args:
        traces: every task's trace by id, as the collector received it.
        runs: what ``run_agent`` returned.
        speedups: the serving gate's ratios.
        route: names the claims.
        run: names where they come from.
        confidence: one-sided, of each bound.

    Raises:
        EvidenceError: a task's trace is missing.
    """
    rows = []
    problems = []
    for number in sorted({number for number, _ in runs}):
        pair = {arm: runs[number, arm] for arm in ARMS}
        missing = [one.trace_id for one in pair.values() if one.trace_id not in traces]
        if missing:
            raise EvidenceError(
                "was not exported", field="trace", value=missing[0], remedy="run the agent again"
            )
        row = _row(number, pair, {arm: traces[one.trace_id] for arm, one in pair.items()}, speedups)
        rows.append(row)
        if row["problem"] is not None:
            problems.append(f"task {number + 1}: {row['problem']}")
    good = [row for row in rows if row["problem"] is None]
    comparison: Comparison | None = None
    claims: tuple[Claim, ...] = ()
    if good:
        tasks = PairedTasks(
            *(tuple(row[f"{arm}_s"] for row in good) for arm in ARMS),
            *(tuple(row["predicted_s"][end] for row in good) for end in ("value", "low", "high")),
        )
        comparison = compare(tasks, confidence=confidence)
        claims = comparison_claims(
            tasks,
            comparison,
            prefix=f"agent/{route}",
            source=f"agent run {run}",
            confidence=confidence,
        )
    facts = _facts(good, route=route, run=run)
    values = {claim.id.rsplit("/", 1)[1]: claim.value for claim in facts}
    return AgentResult(
        rows=tuple(rows),
        comparison=comparison,
        claims=(*claims, *facts),
        problems=tuple(problems),
        decode_ratio=values.get("decode_ratio"),
        wall_s=values.get("baseline_wall"),
        ceiling_s=values.get("ceiling"),
    )


def _facts(rows: Sequence[Mapping[str, Any]], *, route: str, run: str) -> tuple[Claim, ...]:
    """Claims of what stands beside the comparison: wall time, ceiling, the tasks' own ratio."""
    if not rows:
        return ()
    walls = [row["baseline_s"] for row in rows]
    ceilings = [row["ceiling_s"] for row in rows]
    decoded = [[row["decode_s"][arm] for row in rows] for arm in ARMS]
    ratio = decode_ratio(*decoded)
    found: list[tuple[str, str, dict[str, Any], float | None, str, str]] = [
        (
            "baseline_wall",
            "prediction.mean",
            {"values": walls},
            mean(walls),
            "s per task",
            "measured",
        ),
        (
            "ceiling",
            "prediction.mean",
            {"values": ceilings},
            mean(ceilings),
            "s per task",
            "estimated",
        ),
        (
            "decode_ratio",
            "prediction.decode_ratio",
            {"baseline_s": decoded[0], "candidate_s": decoded[1]},
            ratio,
            "ratio",
            "measured",
        ),
    ]
    return tuple(
        Claim(f"agent/{route}/{name}", formula, inputs, value, unit, status, f"agent run {run}")
        for name, formula, inputs, value, unit, status in found
        if value is not None
    )


def _row(
    number: int,
    pair: Mapping[str, TaskRun],
    traces: Mapping[str, Trace],
    speedups: Sequence[Speedup],
) -> dict[str, Any]:
    profiles = {arm: profile_task(traces[arm]) for arm in ARMS}
    predicted = predict_saving(traces["baseline"], speedups)
    branch = predict_saving(
        traces["baseline"],
        speedups,
        only=lambda span: span.attributes.get(STEP_ATTRIBUTE) == BRANCH,
    )
    problem = predicted.problem
    if problem is None and not profiles["candidate"].reconciled:
        problem = "the candidate's trace does not reconcile"
    walls = {arm: profiles[arm].task.wall_ns / _NS for arm in ARMS}
    return {
        "task": number,
        "problem": problem,
        "baseline_s": walls["baseline"],
        "candidate_s": walls["candidate"],
        "observed_s": walls["baseline"] - walls["candidate"],
        "predicted_s": {
            "value": _seconds(predicted.value_ns),
            "low": _seconds(predicted.low_ns),
            "high": _seconds(predicted.high_ns),
        },
        "branch_predicted_s": _seconds(branch.value_ns),
        "ceiling_s": _seconds(profiles["baseline"].ceiling_ns),
        "critical_path_s": _kinds(profiles["baseline"]),
        "decode_s": {arm: profiles[arm].segments_ns["decode"] / _NS for arm in ARMS},
        "tool_s": pair["baseline"].work.tool_s,
        "traces": {arm: pair[arm].trace_id for arm in ARMS},
        "rounds": {arm: pair[arm].rounds for arm in ARMS},
        "tokens": {arm: pair[arm].output_tokens for arm in ARMS},
        "verified": {arm: pair[arm].verified for arm in ARMS},
        "same_text": pair["baseline"].texts == pair["candidate"].texts,
        "residual_s": {arm: profiles[arm].residual_ns / _NS for arm in ARMS},
    }


def _kinds(profile: TaskProfile) -> dict[str, float]:
    return {kind: ns / _NS for kind, ns in profile.critical_path_ns.items() if ns}


def _seconds(ns: Fraction | None) -> float | None:
    return None if ns is None else float(ns / _NS)
