"""``make verify STAGE=proposers``: every kind of proposer is exact on the real model.

50 prompts × 64 greedy tokens and 5,000 sampled tokens at each of two settings, judged by the
equivalence gate. Medusa's typical acceptance runs twice: declared exact it must fail, declared
approximate it is let through with its deviation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gate_part import Budget, equivalence, exact, open_engine
from proposer_kinds import KINDS, TYPICAL, artifacts, say

from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.verdicts import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SETTINGS", "parts"]

SETTINGS = (
    SamplingSettings(temperature=1.0),
    SamplingSettings(temperature=0.7, top_p=0.9, repetition_penalty=1.1),
)
SLICES = {"prose": 12, "code": 12, "tool_calls": 12, "multilingual": 12, "long_context": 2}
FULL = Budget(prompts=50, sampled=5_000, gammas=(1,))
LOOSE = Budget(prompts=4, sampled=600, window=0.35, bonus=0.45, gammas=(1,))
"""A product's choice, wide enough for an approximation: what it shows is the deviation itself."""


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """One part a kind, and typical acceptance under both contracts."""
    found: dict[str, Callable[[], dict[str, Any]]] = {
        name.replace(" ", "-"): partial(exactness, name) for name in KINDS
    }
    return {**found, "typical": typical}


def exactness(name: str, budget: Budget = FULL) -> dict[str, Any]:
    """The gate on one kind."""
    artifact = artifacts([name])[name]
    engine = open_engine(artifact)
    try:
        figures = equivalence(engine, artifact, SETTINGS, budget, slices=SLICES)
    finally:
        engine.close()
    return {"kind": name, **figures, "holds": exact(figures)}


def typical(budget: Budget = LOOSE) -> dict[str, Any]:
    """Typical acceptance on Medusa's heads: FAIL as exact, a printed deviation as approximate."""
    declared = {**artifacts(["medusa"])["medusa"], "acceptance": TYPICAL}
    claimed = {**declared, "acceptance": {**TYPICAL, "contract": "exact"}}
    engine = open_engine(declared)
    try:
        runs = {
            contract: equivalence(engine, artifact, SETTINGS[:1], budget, slices={"prose": 12})
            for contract, artifact in (("exact", claimed), ("approximate", declared))
        }
    finally:
        engine.close()
    outcomes = {contract: run["result"]["outcome"] for contract, run in runs.items()}
    deviation = _largest_deviation(runs["approximate"])
    say(f"typical acceptance: {outcomes}, largest deviation {deviation:+.3f}")
    holds = outcomes == {"exact": Outcome.FAIL, "approximate": Outcome.PASS}
    return {"contracts": runs, "largest_deviation": deviation, "holds": holds}


def _largest_deviation(run: dict[str, Any]) -> float:
    """Mean difference of the declared feature that is farthest from the target's own."""
    rows = run["result"]["summary"]["tolerance"]
    return float(max((row["deviation"] for row in rows), key=abs))
