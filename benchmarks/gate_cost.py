"""What judging costs beside decoding: CPU time of each part of the equivalence gate, a token.

    python benchmarks/gate_cost.py [--requests 16] [--tokens 32] [--json FILE]

The sampled requests of a gate are decoded twice, without what only the gate reads and with it (q at the
bonus position); then they are scored by the independent forward and go through the strict bank and the
tolerance sums. The gate keeps its promise where all that takes at most twice the plain decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

from gate_part import Budget, mixed, open_engine
from proposer_kinds import artifacts

from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.stats.gate_cost import BANK, GENERATION, PROPOSAL, SCORING
from gatekeeper.gates import equivalence
from gatekeeper.load import transcripts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.decoding import TokenPrompt
    from gatekeeper.load.transcripts import Transcript
    from gatekeeper.protocols import Engine

__all__ = ["LIMIT", "cost", "real_model"]

LIMIT = 2.0
"""CPU time of a gated token, in that of a token decoded for itself."""

KIND = "draft_lm"


def cost(
    engine: Engine,
    artifact: Mapping[str, Any],
    prompts: Sequence[TokenPrompt],
    *,
    requests: int,
    tokens: int,
) -> dict[str, Any]:
    """Milliseconds of CPU time a token by part, and all of it in units of plain decoding."""
    policy = Budget(1, requests * tokens).policy()
    policy = replace(policy, equivalence=replace(policy.equivalence, tokens_per_request=tokens))
    plan = equivalence.plan(
        policy,
        artifact,
        prompts=prompts,
        sampling=(SamplingSettings(temperature=1.0),),
        end_tokens=engine.info.end_tokens,
    )
    sampled = [trial for trial in plan.trials if trial.arm == equivalence.SAMPLED][:requests]
    plan = replace(plan, trials=tuple(sampled), greedy_prompts=0)
    _decode(engine, plan, evidence=False, only=2)  # what is done once
    alone, _, count = _decode(engine, plan, evidence=False)
    shown, done, again = _decode(engine, plan, evidence=True)
    if count != again:
        raise SystemExit(f"evidence changed the text: {count} tokens, then {again}")
    accumulator = equivalence.Accumulator(plan, engine.info)
    scoring = bank = 0.0
    for trial in sampled:
        found = done[trial.request.request_id]
        start = time.process_time()
        scored = engine.score(
            found.request.prompt,
            found.tokens,
            found.request.sampling,
            stop=found.request.end_tokens,
            min_tokens=found.request.min_tokens,
        )
        scoring += time.process_time() - start
        start = time.process_time()
        accumulator.add(trial, equivalence.evidence_of(trial, found.emissions, scored), scored)
        bank += time.process_time() - start
    parts = {GENERATION: alone, PROPOSAL: shown - alone, SCORING: scoring, BANK: bank}
    ratio = (shown + scoring + bank) / alone
    return {
        "tokens": count,
        "ms_per_token": {name: round(1e3 * s / count, 3) for name, s in parts.items()},
        "ratio": round(ratio, 3),
        "holds": ratio <= LIMIT,
    }


def _decode(
    engine: Engine, plan: equivalence.Plan, *, evidence: bool, only: int | None = None
) -> tuple[float, dict[str, Transcript], int]:
    """CPU seconds, finished requests by id, and their tokens."""
    wanted = [replace(trial.request, evidence=evidence) for trial in plan.trials[:only]]
    start = time.process_time()
    done = {
        found.request.request_id: found
        for found in transcripts(
            engine, wanted, in_flight=min(plan.budget.max_batch, engine.info.max_batch)
        )
    }
    spent = time.process_time() - start
    return spent, done, sum(len(found.tokens) for found in done.values())


def real_model(requests: int = 16, tokens: int = 32) -> dict[str, Any]:
    """The cost on SmolLM2-135M with the shipped small draft model, eight requests at a time."""
    artifact = artifacts([KIND])[KIND]
    engine = open_engine(artifact)
    try:
        return cost(engine, artifact, mixed(engine, {"prose": 8}), requests=requests, tokens=tokens)
    finally:
        engine.close()


def main() -> None:
    """Print the parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = real_model(chosen.requests, chosen.tokens)
    for name, ms in found["ms_per_token"].items():
        print(f"{name:16s} {ms:8.3f} ms a token")
    print(f"a gated token takes {found['ratio']:.2f} times a plain one (at most {LIMIT:g})")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
