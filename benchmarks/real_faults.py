"""Faults planted in the exact engine on SmolLM2-135M: tokens until the strict bank finds each.

    python benchmarks/real_faults.py [FAULT ...] [--seeds N]

The draft is the target itself at another temperature, so acceptance lies where that of a good small draft
does, and only a sampler can be wrong. The gate of production judges, with so wide a tolerance that the
strict bank alone decides. The faults are those of ``tests/engine_faults.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

from gate_part import Budget, equivalence
from proposer_kinds import CACHE, say

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # where the planted faults live

from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.core.decoding import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gatekeeper.protocols import Engine

__all__ = ["FAULTS", "LIMIT", "parts", "until_found"]

FAULTS = (
    "residual_not_subtracted",
    "bonus_from_q",
    "accept_above_threshold",
    "correction_from_q",
    "argmax_draft_with_soft_q",
    "q_at_wrong_temperature",
)
LIMIT, SEEDS = 5000, 5
"""Sampled tokens within which each seed must alarm."""

ACCEPTANCE = (0.6, 0.8)
"""Of a draft token whose predecessors were accepted: what the reference points are given for."""

TEMPERATURE = 1.0
GAMMA, SLOTS, CONTEXT = 4, 8, 384
SLICES = {"prose": 12, "code": 6}
ARTIFACT = {
    "gamma": GAMMA,
    "acceptance": {"method": "standard", "contract": "exact"},
    "proposer": {"kind": "draft_lm"},
}


def until_found(
    engine: Engine, seed: int, *, slices: Mapping[str, int], limit: int = LIMIT
) -> dict[str, Any]:
    """One run of the gate: its outcome, what found it, and the sampled tokens it took."""
    budget = Budget(1, limit, window=0.9, bonus=0.9, gammas=(GAMMA,))
    settings = [SamplingSettings(temperature=TEMPERATURE)]
    figures = equivalence(engine, ARTIFACT, settings, budget, slices=slices, seed=seed)
    summary = figures["result"]["summary"]
    counts = [
        AcceptanceCounts.from_dict(
            {k: v for k, v in entry.items() if k not in {"setting", "gamma"}}
        )
        for entry in figures["acceptance"]
        if (entry["setting"], entry["gamma"]) == (settings[0].label, GAMMA)
    ]
    return {
        "outcome": figures["result"]["outcome"],
        "part": (summary["counter_example"] or {}).get("part"),
        "family": summary["strict"]["worst_family"],
        "tokens": summary["tokens"],
        "acceptance": _acceptance(counts[0]) if counts else None,
    }


def _acceptance(counts: AcceptanceCounts) -> float | None:
    """Accepted ÷ judged draft tokens, over all positions of the window; the rest was never judged."""
    judged = sum(counts.reached)
    return sum(counts.accepted_at) / judged if judged else None


def on_real_model(fault: str | None, *, seeds: int = SEEDS) -> dict[str, Any]:
    """``until_found`` of each seed; without a fault the gate must stay silent."""
    engine = _engine(fault)
    try:
        runs = [until_found(engine, seed, slices=SLICES) for seed in range(seeds)]
    finally:
        engine.close()
    found = [run["outcome"] == "FAIL" and run["part"] == "strict e-process" for run in runs]
    rates = [run["acceptance"] for run in runs if run["acceptance"] is not None]
    if fault is None:
        low, high = ACCEPTANCE
        holds = all(run["outcome"] == "PASS" for run in runs) and all(
            low <= rate <= high for rate in rates
        )
    else:
        holds = all(found)
    shown = ", ".join(f"{rate:.2f}" for rate in rates)
    tokens = ", ".join(str(run["tokens"]) for run in runs)
    say(f"{fault or 'exact'}: {sum(found)} of {seeds} found, tokens {tokens}, acceptance {shown}")
    return {"real_fault": fault, "limit": LIMIT, "runs_of_seeds": runs, "holds": holds}


def _engine(fault: str | None) -> Engine:
    from engine_faults import warmed  # noqa: PLC0415 - torch arrives here and not before
    from gatekeeper_adapters.engines.reference.convert import prepare  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.sources import SMOLLM2  # noqa: PLC0415

    target = prepare(SMOLLM2, CACHE, say)
    options = Options(max_batch=SLOTS, max_context=CONTEXT)
    return load_engine(
        target,
        {"kind": "draft_lm", "parameters": {}},
        target,
        version="faults",
        options=replace(options, switches=warmed(fault)),
    )


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Parts of the detection stage: the exact engine, then each fault."""
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "real-exact": partial(on_real_model, None, seeds=1)
    }
    return found | {
        f"real-{name.replace('_', '-')}": partial(on_real_model, name) for name in FAULTS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each fault takes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("fault", nargs="*", help=f"all, or some of {', '.join(FAULTS)}, exact")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    chosen = parser.parse_args(arguments)
    for name in chosen.fault or ("exact", *FAULTS):
        on_real_model(None if name == "exact" else name, seeds=chosen.seeds)


if __name__ == "__main__":
    main()
