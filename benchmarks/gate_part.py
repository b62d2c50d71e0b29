"""One equivalence gate as a part of a long stage: production's rules, another budget."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import yaml
from proposer_kinds import CACHE, ROOT, say

from gatekeeper import plugins, workloads
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.verdicts import Outcome, to_json
from gatekeeper.worker.progress import Progress, Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.decoding import SamplingSettings, TokenPrompt
    from gatekeeper.protocols import Engine

__all__ = ["Budget", "equivalence", "exact", "open_engine"]

EXACT_PARTS = ("greedy identity", "strict e-process")


@dataclasses.dataclass(frozen=True)
class Budget:
    """Greedy prompts, sampled tokens of each setting, and the deviation declared tolerable.

    ``gammas`` are sampled beside the artifact's own.
    """

    prompts: int
    sampled: int
    window: float = 0.02
    bonus: float = 0.1
    gammas: tuple[int, ...] | None = None

    def policy(self) -> Policy:
        """Production's policy with this budget."""
        document = yaml.safe_load((ROOT / "policies" / "production.yaml").read_text())
        document["equivalence"] |= {"max_batch": 8, "tokens_per_request": 64}
        document["equivalence"]["greedy"]["prompts"] = self.prompts
        document["equivalence"]["sampled"] |= {
            "min_tokens": self.sampled,
            "max_tokens": self.sampled,
        }
        document["equivalence"]["tolerance"] |= {"window": self.window, "bonus": self.bonus}
        if self.gammas is not None:
            document["serving"]["gammas"] = list(self.gammas)
        return Policy.from_dict(document)


def open_engine(artifact: Mapping[str, Any]) -> Engine:
    """The engine of an artifact with eight slots."""
    provider = plugins.load("gatekeeper.engines", "reference")
    engine: Engine = provider.open(artifact, cache=CACHE, max_batch=8, device="cpu")
    return engine


def equivalence(
    engine: Engine,
    artifact: Mapping[str, Any],
    settings: Sequence[SamplingSettings],
    budget: Budget,
    *,
    slices: Mapping[str, int],
    seed: int | None = None,
) -> dict[str, Any]:
    """Run the gate over so many prompts of each slice; every figure of its result.

    ``seed`` draws other requests than the policy's.
    """
    prompts = mixed(engine, slices)
    run = ClaimedRun(
        id="verify",
        gate="equivalence",
        route="verify",
        slice=next(iter(slices)),
        artifact_digest="",
        artifact=artifact,
        policy=budget.policy(),
        parameters={} if seed is None else {"seed": seed},
        attempt=1,
        fence=0,
        cancel_requested=False,
        sampling=tuple(settings),
        slo=None,
    )
    tracker = Tracker(time.monotonic, _progress)
    measured = measure(run, engine, tracker, lambda: False, time.monotonic, prompts=prompts)
    result = to_json(measured.result)
    result.pop("claims", None)  # each has its table in a real run's evidence
    return {
        "slices": dict(slices),
        "settings": [setting.label for setting in settings],
        "result": result,
        "acceptance": list(measured.acceptance),
        "engine": dataclasses.asdict(engine.info),
    }


def mixed(engine: Engine, slices: Mapping[str, int]) -> list[TokenPrompt]:
    """So many prompts of each slice (or all), spread over it, that leave room for the output."""
    out = []
    for name, count in slices.items():
        found = workloads.tokenised(name, engine.tokenize, max_tokens=engine.info.max_context - 80)
        taken = min(count, len(found))
        out += [found[i * len(found) // taken] for i in range(taken)]
    return out


def exact(figures: Mapping[str, Any]) -> bool:
    """Whether greedy identity and the strict e-process both passed."""
    parts = {part["name"]: part["outcome"] for part in figures["result"]["parts"]}
    return {parts[name] for name in EXACT_PARTS} == {Outcome.PASS}


def _progress(progress: Progress) -> None:
    say(str(progress))
