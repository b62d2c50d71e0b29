"""Runs the blocks of the serving gate: warm-up, sweep, choice, confirmation, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from gatekeeper.core.stats.serving_rounds import counts
from gatekeeper.gates import serving
from gatekeeper.load import run_block
from gatekeeper.worker.evidence import round_trip
from gatekeeper.worker.measured import Cancelled, Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gatekeeper.core.policy_schema import ServingBudget
    from gatekeeper.protocols import Engine
    from gatekeeper.worker.progress import Tracker

__all__ = ["run_serving"]


def run_serving(
    plan: serving.Plan,
    engine: Engine,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
) -> Measured:
    """Measure a plan on an engine.

    Raises:
        Cancelled: ``cancelled()`` became true; nothing of the run is kept.
        Unavailable: the engine stopped making progress.
    """
    blocks = _Blocks(engine, tracker, cancelled, clock)
    run_block(
        engine,
        plan.warm_up.requests,
        plan.warm_up.concurrency,
        clock,
        cancelled=cancelled,
    )
    blocks.run("sweep", plan.trials)
    sweep = blocks.table("sweep")
    chosen = serving.choose(sweep, plan.suite.budget)
    note = ", ".join(f"gamma {gamma} at concurrency {c}" for c, gamma in chosen.items())
    blocks.run("confirm", plan.confirm(chosen), note)
    files, tables = round_trip(
        {
            "sweep": sweep,
            "confirm": blocks.table("confirm"),
            "rounds": pd.concat(blocks.rounds, ignore_index=True),
            "memory": pd.concat(blocks.memory, ignore_index=True),
        }
    )
    result = serving.evaluate(plan.suite.budget, tables)
    return Measured(result, files, _acceptance(plan.suite.budget, chosen, tables))


class _Blocks:
    """Runs blocks one after the other and collects their rows."""

    def __init__(
        self,
        engine: Engine,
        tracker: Tracker,
        cancelled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._tracker = tracker
        self._cancelled = cancelled
        self._clock = clock
        self._requests: dict[str, list[pd.DataFrame]] = {"sweep": [], "confirm": []}
        self.rounds: list[pd.DataFrame] = []
        self.memory: list[pd.DataFrame] = []

    def run(self, phase: str, trials: Sequence[serving.BlockTrial], note: str = "") -> None:
        for number, trial in enumerate(trials):
            self._tracker.report(phase, number, len(trials), note)
            block = run_block(
                self._engine,
                trial.requests,
                trial.concurrency,
                self._clock,
                cancelled=self._cancelled,
            )
            if not block.complete:
                raise Cancelled
            self._requests[phase].append(trial.request_rows(block.requests))
            self.rounds.append(trial.round_rows(block.rounds))
            ledger, info = self._engine.memory(), self._engine.info
            predicted = info.details.get("predicted_memory")
            self.memory.append(trial.memory_rows(ledger, info.max_batch, predicted))
        self._tracker.report(phase, len(trials), len(trials), note)

    def table(self, phase: str) -> pd.DataFrame:
        return pd.concat(self._requests[phase], ignore_index=True)


def _acceptance(
    budget: ServingBudget, chosen: Mapping[int, int], tables: Mapping[str, pd.DataFrame]
) -> list[dict[str, Any]]:
    """Acceptance counts of the confirmed windows, one entry per concurrency."""
    return [
        {
            "concurrency": concurrency,
            "gamma": chosen[concurrency],
            **counts(
                tables["rounds"], concurrency=concurrency, gamma=chosen[concurrency]
            ).to_dict(),
        }
        for concurrency in budget.concurrency
    ]
