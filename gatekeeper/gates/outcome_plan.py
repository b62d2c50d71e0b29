"""Plan of the outcome gate: the same tasks decoded by both arms, in small blocks in random order.

A block holds the samples of a few tasks for one arm; its twin of the other arm follows or precedes
it at once, so that drift of the machine hits both. The two blocks are one cluster: samples of a
task, and pairs that shared the machine's mood, are not independent. Every request has a seed of
its own, so that the arms are independent given the task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from gatekeeper.core.decoding import DecodeRequest
from gatekeeper.core.stats.noninferiority import attainable_power, minimal_pairs
from gatekeeper.core.stats.outcome_pairs import BASELINE, CANDIDATE
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.decoding import Rates, TokenPrompt
    from gatekeeper.core.policy_schema import OutcomeBudget, Policy

__all__ = ["Answer", "Attempt", "Block", "Plan", "plan"]

_ASSUMED_DISCORDANCE = 0.2
"""Share of pairs that differ by chance: .16 to .22 on SmolLM2-135M-Instruct at T = .5."""

_POWER = 0.9
_ROUNDS_PER_BLOCK = 2
"""A block fills the concurrency this many times: less would mostly measure its half-empty end."""


@dataclass(frozen=True)
class Attempt:
    """One request: which sample of which task."""

    task: str
    kind: str
    sample: int
    request: DecodeRequest


@dataclass(frozen=True)
class Block:
    """Requests of one arm; ``cluster`` numbers the pair of blocks, ``position`` 0 ran first."""

    cluster: int
    arm: str
    position: int
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class Answer:
    """What came of an attempt; ``cost_s`` engine-busy seconds, see ``Plan.pairs``."""

    attempt: Attempt
    block: Block
    text: str
    success: bool
    tokens: int
    cost_s: float


@dataclass(frozen=True)
class Plan:
    """Blocks in the order to run; ``warm_up`` is run first and not recorded."""

    budget: OutcomeBudget
    suite: str
    gamma: int
    concurrency: int
    warm_up: Block
    blocks: tuple[Block, ...]
    estimate: Mapping[str, Any]

    def pairs(self, answers: Iterable[Answer]) -> pd.DataFrame:
        """Return the table ``pairs``, one row per task and sample.

        Costs are engine-busy seconds: the wall time of each engine step, shared equally among the
        requests in flight during it, prefill steps included; over a block they add up to the time
        its steps took. ``suite`` is the digest of the tasks.

        Raises:
            InputError: an attempt of the plan has no answer, or has two.
        """
        columns = ["task", "sample", "kind", "cluster", "arm", "position", "success", "cost"]
        rows = pd.DataFrame(
            [
                (
                    *(a.attempt.task, a.attempt.sample, a.attempt.kind, a.block.cluster),
                    *(a.block.arm, a.block.position, int(a.success), a.cost_s),
                    *(a.tokens, a.text),
                )
                for a in answers
            ],
            columns=[*columns, "tokens", "answer"],
        )
        wanted = sum(len(block.attempts) for block in self.blocks)
        if len(rows) != wanted or rows.duplicated(["task", "sample", "arm"]).any():
            raise InputError(
                f"are not one for each of {wanted} attempts",
                field="answers",
                value=len(rows),
                remedy="run every block of the plan once",
            )
        keys = ["task", "sample", "kind", "cluster"]
        measured = ("success", "cost", "tokens", "answer", "position")
        arms = {
            arm: rows.loc[rows["arm"] == arm, [*keys, *measured]].rename(
                columns={name: f"{arm}_{name}" for name in measured}
            )
            for arm in (BASELINE, CANDIDATE)
        }
        table = arms[BASELINE].merge(arms[CANDIDATE], on=keys, validate="one_to_one")
        order = [f"{arm}_{name}" for name in measured for arm in (BASELINE, CANDIDATE)]
        return table[[*keys, *order[:-1]]].assign(
            gamma=self.gamma, concurrency=self.concurrency, suite=self.suite
        )


def plan(
    policy: Policy,
    artifact: Mapping[str, Any],
    *,
    tasks: Sequence[TokenPrompt],
    suite: str,
    end_tokens: Sequence[int],
    seed: int,
    gamma: int | None = None,
    concurrency: int | None = None,
    rates: Rates | None = None,
) -> Plan:
    """Plan the gate. A task is a prompt whose ``slice`` is its kind; ``suite`` their digest.

    Tasks are drawn at random, kinds in turn. ``gamma`` defaults to the artifact's, ``concurrency``
    to the budget's.

    Raises:
        InputError: too few tasks for the budget, or gamma or concurrency below 1.
    """
    budget = policy.outcome
    gamma = int(artifact["gamma"]) if gamma is None else gamma
    concurrency = budget.concurrency if concurrency is None else concurrency
    for name, value in (("gamma", gamma), ("concurrency", concurrency)):
        if value < 1:
            raise InputError("must be 1 or more", field=name, value=value, remedy="use 1 or more")
    wanted = budget.pairs // budget.samples
    if wanted > len(tasks):
        raise InputError(
            f"needs {wanted} tasks, and the suite has {len(tasks)} that fit the engine",
            field="outcome.samples",
            value=budget.samples,
            remedy=f"use {math.ceil(budget.pairs / max(len(tasks), 1))} samples or more",
        )
    rng = np.random.default_rng(seed)
    chosen = _in_turn(tasks, rng)[:wanted]
    make = _Blocks(budget, gamma, tuple(end_tokens), rng)
    size = math.ceil(_ROUNDS_PER_BLOCK * concurrency / budget.samples)
    groups = [chosen[i : i + size] for i in range(0, wanted, size)]
    blocks = tuple(
        block for cluster, group in enumerate(groups) for block in make.twins(cluster, group)
    )
    warm_up = make.block(-1, CANDIDATE, 0, make.draw(chosen[:1]))
    shape = {"gamma": gamma, "concurrency": concurrency, "clusters": len(groups)}
    estimate = _estimate(budget, chosen, shape, rates)
    return Plan(budget, suite, gamma, concurrency, warm_up, blocks, estimate)


def _in_turn(tasks: Sequence[TokenPrompt], rng: np.random.Generator) -> list[TokenPrompt]:
    """Every kind in random order, one task of each kind after the other."""
    kinds: dict[str, list[TokenPrompt]] = {}
    for task in tasks:
        kinds.setdefault(task.slice, []).append(task)
    shuffled = [[group[i] for i in rng.permutation(len(group))] for group in kinds.values()]
    longest = max(map(len, shuffled))
    return [group[i] for i in range(longest) for group in shuffled if i < len(group)]


class _Blocks:
    """Draws orders and seeds."""

    def __init__(
        self,
        budget: OutcomeBudget,
        gamma: int,
        end_tokens: tuple[int, ...],
        rng: np.random.Generator,
    ) -> None:
        self._budget, self._gamma, self._end_tokens, self._rng = budget, gamma, end_tokens, rng

    def draw(self, group: Sequence[TokenPrompt]) -> list[tuple[TokenPrompt, int]]:
        """Every sample of every task of the group, in random order."""
        pairs = [(task, sample) for task in group for sample in range(self._budget.samples)]
        return [pairs[i] for i in self._rng.permutation(len(pairs))]

    def twins(self, cluster: int, group: Sequence[TokenPrompt]) -> list[Block]:
        """Both arms over the same samples in the same order, arms in random order."""
        drawn = self.draw(group)
        arms = [(BASELINE, CANDIDATE)[i] for i in self._rng.permutation(2)]
        return [self.block(cluster, arm, position, drawn) for position, arm in enumerate(arms)]

    def block(
        self, cluster: int, arm: str, position: int, drawn: Sequence[tuple[TokenPrompt, int]]
    ) -> Block:
        budget = self._budget
        attempts = tuple(
            Attempt(
                task=task.id,
                kind=task.slice,
                sample=sample,
                request=DecodeRequest(
                    request_id=f"outcome-{arm}-{task.id}-{sample}",
                    prompt=task.tokens,
                    max_tokens=budget.max_tokens,
                    sampling=budget.sampling,
                    seed=int(self._rng.integers(2**63)),
                    gamma=self._gamma if arm == CANDIDATE else 0,
                    end_tokens=self._end_tokens,
                ),
            )
            for task, sample in drawn
        )
        return Block(cluster, arm, position, attempts)


def _estimate(
    budget: OutcomeBudget,
    chosen: Sequence[TokenPrompt],
    shape: Mapping[str, int],
    rates: Rates | None,
) -> dict[str, Any]:
    """Tokens at most, minutes where rates are known, and the power of the pairs."""
    tokens = 2 * budget.pairs * budget.max_tokens
    prompt_tokens = 2 * budget.samples * sum(len(task.tokens) for task in chosen)
    worth = float(budget.pairs)
    if shape["clusters"] < budget.pairs:
        t = stats.t.isf(budget.alpha, max(shape["clusters"] - 1, 1))
        worth *= float(stats.norm.isf(budget.alpha) / t) ** 2
    power = attainable_power(
        worth, margin=budget.margin, discordance=_ASSUMED_DISCORDANCE, alpha=budget.alpha
    )
    quantiles = float(stats.norm.isf(budget.alpha) + stats.norm.ppf(_POWER))
    loss = budget.margin + quantiles * math.sqrt(_ASSUMED_DISCORDANCE / worth)
    return {
        "gate": "outcome",
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "pairs": budget.pairs,
        "tasks": len(chosen),
        "samples": budget.samples,
        **shape,
        "sampling": budget.sampling.label,
        "minutes": None if rates is None else rates.minutes(tokens, prompt_tokens),
        "minimal_pairs": minimal_pairs(budget.margin, budget.alpha),
        "power": power,
        "attainable_power": (
            f"{budget.pairs} pairs let equal arms pass a margin of {budget.margin:g} with power "
            f"{power:.2f}, and show a loss of {min(loss, 1.0):.2f} with power {_POWER}, where "
            f"{_ASSUMED_DISCORDANCE:.0%} of the pairs differ by chance"
        ),
    }
