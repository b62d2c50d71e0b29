"""Plan of the serving gate: a sweep that chooses gamma, then fresh pairs of blocks that confirm it.

Both arms of a pair decode the same requests with the same seeds, in random order, back to back, so
that drift of the machine hits both. Sweep and confirmation draw from separate random streams.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gatekeeper.core.decoding import DecodeRequest
from gatekeeper.core.memory import PURPOSES
from gatekeeper.core.stats.power import ASSUMED_SPREAD, TARGET_POWER, detectable_speedup
from gatekeeper.core.stats.serving_blocks import ORDINARY, SPECULATIVE, level
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gatekeeper.core.decoding import Rates, SamplingSettings, TokenPrompt
    from gatekeeper.core.memory import MemoryLedger
    from gatekeeper.core.policy_schema import Policy, ServingBudget

__all__ = ["BlockTrial", "Plan", "Suite", "choose", "plan"]

_SWEEP, _CONFIRM, _WARM_UP = 0, 1, 2


@dataclass(frozen=True)
class BlockTrial:
    """One block to run: requests in order, with what describes them for the evidence tables."""

    phase: str
    pair: int
    position: int
    arm: str
    concurrency: int
    gamma: int
    requests: tuple[DecodeRequest, ...]
    labels: tuple[Mapping[str, str], ...]

    def request_rows(self, requests: pd.DataFrame) -> pd.DataFrame:
        """Rows of ``sweep`` or ``confirm``: what was measured, and which block it belongs to."""
        described = pd.DataFrame(
            [
                {"request_id": r.request_id, **label}
                for r, label in zip(self.requests, self.labels, strict=True)
            ]
        )
        rows = described.merge(requests, on="request_id", how="left", validate="one_to_one")
        return self.tag(rows)

    def round_rows(self, rounds: pd.DataFrame) -> pd.DataFrame:
        """Rows of ``rounds``; ``gamma`` there is the round's own, equal to this block's."""
        return self.tag(rounds)

    def memory_rows(
        self, ledger: MemoryLedger, slots: int, predicted: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Rows of ``memory``, one per purpose; ``predicted`` is a ledger from before loading."""
        held = asdict(ledger)
        expected = predicted or {}
        rows = [
            {
                "purpose": purpose,
                "bytes": held[purpose],
                "measured": purpose not in ledger.unmeasured,
                "slots": slots,
                "predicted": float(expected.get(purpose, math.nan)),
            }
            for purpose in PURPOSES
        ]
        return self.tag(pd.DataFrame(rows))

    def tag(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows with what says which block they belong to."""
        tags: dict[str, Any] = {
            "phase": self.phase,
            "pair": self.pair,
            "position": self.position,
            "arm": self.arm,
            "concurrency": self.concurrency,
            "gamma": self.gamma,
        }
        return rows.assign(**tags)


@dataclass(frozen=True)
class Suite:
    """What the blocks are drawn from."""

    budget: ServingBudget
    gammas: tuple[int, ...]
    prompts: tuple[TokenPrompt, ...]
    sampling: tuple[SamplingSettings, ...]
    end_tokens: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Plan:
    """``trials`` are the sweep; ``confirm`` plans the rest once gamma is chosen.

    ``warm_up`` is run first and not recorded: first touches of memory belong to no arm.
    """

    suite: Suite
    warm_up: BlockTrial
    trials: tuple[BlockTrial, ...]
    estimate: Mapping[str, Any]

    def confirm(self, chosen: Mapping[int, int]) -> tuple[BlockTrial, ...]:
        """Return fresh interleaved A/B pairs, levels in random order within each repetition."""
        budget = self.suite.budget
        rng = np.random.default_rng([self.suite.seed, _CONFIRM])
        draw = _Requests(self.suite, rng)
        trials: list[BlockTrial] = []
        for pair in range(budget.confirm_blocks):
            for concurrency in rng.permutation(budget.concurrency).tolist():
                arms = [(ORDINARY, 0), (SPECULATIVE, chosen[concurrency])]
                trials += draw.blocks("confirm", pair, concurrency, arms)
        return tuple(trials)


def plan(
    policy: Policy,
    artifact: Mapping[str, Any],
    *,
    prompts: Sequence[TokenPrompt],
    sampling: Sequence[SamplingSettings],
    end_tokens: Sequence[int],
    seed: int,
    rates: Rates | None = None,
    budget: ServingBudget | None = None,
) -> Plan:
    """Plan the gate for one artifact on one slice.

    Windows longer than the artifact's ``gamma`` are left out: the equivalence gate did not test
    them. ``budget`` replaces the policy's (for a route's own SLO).

    Raises:
        InputError: no prompts or no sampling settings.
    """
    budget = budget or policy.serving
    for name, given in (("prompts", prompts), ("sampling", sampling)):
        if not given:
            raise InputError("is empty", field=name, remedy="give at least one")
    longest = int(artifact["gamma"])
    gammas = tuple(sorted({longest, *(g for g in budget.gammas if g <= longest)}))
    suite = Suite(budget, gammas, tuple(prompts), tuple(sampling), tuple(end_tokens), seed)
    rng = np.random.default_rng([seed, _SWEEP])
    draw = _Requests(suite, rng)
    trials: list[BlockTrial] = []
    for pair in range(budget.sweep_blocks):
        for concurrency in rng.permutation(budget.concurrency).tolist():
            arms = [(ORDINARY, 0), *((SPECULATIVE, gamma) for gamma in gammas)]
            trials += draw.blocks("sweep", pair, concurrency, arms)
    warm = _Requests(suite, np.random.default_rng([seed, _WARM_UP]))
    (warm_up,) = warm.blocks("warm_up", 0, budget.concurrency[-1], [(SPECULATIVE, longest)])
    return Plan(suite, warm_up, tuple(trials), _estimate(suite, rates))


def choose(sweep: pd.DataFrame, budget: ServingBudget) -> dict[int, int]:
    """Return per concurrency the window with the lowest mean TPOT in the sweep, ties to the shorter.

    Always a window, never 0: whether any speculation pays is for the fresh blocks to say.

    Raises:
        InputError: the sweep has no speculative block at a level.
    """
    chosen = {}
    for concurrency in budget.concurrency:
        at = sweep[(sweep["concurrency"] == concurrency) & (sweep["arm"] == SPECULATIVE)]
        times = {
            int(gamma): level(at, statistic="tpot_mean", concurrency=concurrency, gamma=int(gamma))
            for gamma in sorted(at["gamma"].unique())
        }
        if not times:
            raise InputError(
                "has no speculative block in the sweep", field="concurrency", value=concurrency
            )
        chosen[concurrency] = min(
            times, key=lambda gamma: (math.inf if times[gamma] is None else times[gamma], gamma)
        )
    return chosen


class _Requests:
    """Draws the requests of blocks: every prompt gets its turn, long and short ones alternate."""

    def __init__(self, source: Suite, rng: np.random.Generator) -> None:
        self._suite = source
        self._rng = rng
        median = float(np.median([len(p.tokens) for p in source.prompts]))
        groups: dict[str, list[TokenPrompt]] = {"short": [], "long": []}
        for prompt in source.prompts:
            groups["short" if len(prompt.tokens) <= median else "long"].append(prompt)
        self._streams = cycle(
            [(name, self._endless(group)) for name, group in groups.items() if group]
        )

    def blocks(
        self, phase: str, pair: int, concurrency: int, arms: Sequence[tuple[str, int]]
    ) -> list[BlockTrial]:
        """Return one block per arm over the same requests, arms in random order."""
        source, budget = self._suite, self._suite.budget
        count = max(budget.requests_per_block, concurrency)
        picked = [(name, next(stream)) for name, stream in islice(self._streams, count)]
        seeds = self._rng.integers(0, 2**31, count).tolist()
        found = []
        for position, index in enumerate(self._rng.permutation(len(arms)).tolist()):
            arm, gamma = arms[index]
            requests = tuple(
                DecodeRequest(
                    request_id=f"{phase}-{pair}-c{concurrency}-g{gamma}-{i}",
                    prompt=prompt.tokens,
                    max_tokens=budget.tokens_per_request,
                    sampling=source.sampling[i % len(source.sampling)],
                    seed=seed,
                    gamma=gamma,
                    min_tokens=2,  # TPOT is undefined for one token
                    end_tokens=source.end_tokens,
                )
                for i, ((_, prompt), seed) in enumerate(zip(picked, seeds, strict=True))
            )
            labels = tuple(
                {
                    "prompt": prompt.id,
                    "slice": prompt.slice,
                    "load_class": name,
                    "sampling": request.sampling.label,
                }
                for (name, prompt), request in zip(picked, requests, strict=True)
            )
            found.append(
                BlockTrial(phase, pair, position, arm, concurrency, gamma, requests, labels)
            )
        return found

    def _endless(self, group: list[TokenPrompt]) -> Iterator[TokenPrompt]:
        """Shuffle again each time all have been used."""
        return chain.from_iterable(
            (group[i] for i in self._rng.permutation(len(group)).tolist()) for _ in iter(int, 1)
        )


def _estimate(suite: Suite, rates: Rates | None) -> dict[str, Any]:
    """Tokens at most, minutes where rates are known, and the gain that the pairs can show."""
    budget = suite.budget
    per_arm = sum(max(budget.requests_per_block, c) for c in budget.concurrency)
    arms = budget.sweep_blocks * (len(suite.gammas) + 1) + budget.confirm_blocks * 2
    requests = per_arm * arms
    tokens = requests * budget.tokens_per_request
    prompt_tokens = round(requests * float(np.mean([len(p.tokens) for p in suite.prompts])))
    gain = detectable_speedup(
        budget.confirm_blocks,
        spread=ASSUMED_SPREAD,
        confidence=budget.confidence,
        target_power=TARGET_POWER,
    )
    return {
        "gate": "serving",
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "blocks": arms * len(budget.concurrency),
        "pairs_per_level": budget.confirm_blocks,
        "minutes": None if rates is None else rates.minutes(tokens, prompt_tokens),
        "detectable_speedup": gain,
        "attainable_power": (
            f"{budget.confirm_blocks} block pairs per level show a speed-up of {gain:.2f} with "
            f"power {TARGET_POWER} if pairs vary by {ASSUMED_SPREAD:.0%}"
        ),
    }
