"""``make verify STAGE=proposers``: every kind of proposer is exact on the real model.

50 prompts × 64 greedy tokens and 5,000 sampled tokens at each of two settings, judged by the
equivalence gate. Medusa's typical acceptance declares what it deviates: a pilot on requests of its own
measures that, the artifact states it, and other requests hold the artifact to it; declared exact, the
same artifact must fail.
"""

from __future__ import annotations

import math
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
PILOT = Budget(prompts=4, sampled=2_000, gammas=(1,))
PILOT_SEED = 20_261_201
STATED = Budget(prompts=4, sampled=4_000, gammas=(1,))
CLAIMED_EXACT = Budget(prompts=4, sampled=600, gammas=(1,))
STEP = 0.05
"""A deviation is stated in twentieths, upwards."""


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


def typical() -> dict[str, Any]:
    """Typical acceptance on Medusa's heads: FAIL as exact, PASS as approximate with what it states.

    The pilot's requests are of another seed than those of the gate that judges the statement.
    """
    medusa = artifacts(["medusa"])["medusa"]
    claimed = {**medusa, "acceptance": {**TYPICAL, "contract": "exact"}}
    unstated = {**medusa, "acceptance": TYPICAL}
    engine = open_engine(unstated)
    gate = partial(equivalence, engine, settings=SETTINGS[:1], slices={"prose": 12})
    try:
        pilot = gate(unstated, budget=PILOT, seed=PILOT_SEED)
        stated = statement(pilot)
        say(f"typical acceptance: the pilot's intervals reach {stated:g}: stated by the artifact")
        declared = {**medusa, "acceptance": {**TYPICAL, "deviation": stated}}
        runs = {
            "exact": gate(claimed, budget=CLAIMED_EXACT),
            "approximate": gate(declared, budget=STATED),
        }
    finally:
        engine.close()
    outcomes = {contract: run["result"]["outcome"] for contract, run in runs.items()}
    deviation = max((row["deviation"] for row in _judged(runs["approximate"])), key=abs)
    say(f"typical acceptance: {outcomes}, largest deviation {deviation:+.3f}")
    return {
        "pilot": pilot,
        "stated_deviation": stated,
        "contracts": runs,
        "largest_deviation": deviation,
        "holds": outcomes == {"exact": Outcome.FAIL, "approximate": Outcome.PASS},
    }


def statement(pilot: dict[str, Any]) -> float:
    """The end of the pilot's intervals that is farthest from 0, rounded up to a twentieth."""
    reach = max(max(-row["low"], row["high"]) for row in _judged(pilot))
    return round(math.ceil(reach / STEP) * STEP, 2)


def _judged(run: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run["result"]["summary"]["tolerance"]
    return rows
