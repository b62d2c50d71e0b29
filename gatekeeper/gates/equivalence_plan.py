"""Plan of the equivalence gate: which requests, in which order, and what they can attain."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings
from gatekeeper.core.stats.evidence import RequestEvidence
from gatekeeper.core.stats.power import (
    REFERENCE_EFFECTS,
    attainable,
    detection,
    tokens_needed,
)
from gatekeeper.core.stats.tolerance import tokens_to_pass
from gatekeeper.errors import InputError
from gatekeeper.gates.equivalence_chain import continued_seed
from gatekeeper.gates.equivalence_record import Before

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gatekeeper.core.decoding import Rates, TokenPrompt
    from gatekeeper.core.policy_schema import EquivalenceBudget, Policy
    from gatekeeper.protocols import Emission, Scored

__all__ = [
    "ORDINARY",
    "SAMPLED",
    "SPECULATIVE",
    "Plan",
    "Trial",
    "admitting",
    "evidence_of",
    "plan",
]

ORDINARY, SPECULATIVE, SAMPLED = "ordinary", "speculative", "sampled"

_FIXED_WINDOWS = frozenset({"ngram", "draft_lm", "self_speculation", "medusa", "eagle", "eagle2"})
"""Proposers whose windows end by what was accepted, never by a drawn token still to be judged."""

_REFERENCE_ACCEPTANCE = 0.76
_LARGEST_VARIANCE = 0.25
_SPARE = (
    2  # requests that end early leave tokens to others: plan twice as many as a full length needs
)
_FIRST = Before(runs=0, tokens=0)


@dataclass(frozen=True)
class Trial:
    """One request of the gate. ``index`` orders the sampled ones for the e-process.

    ``arm`` is ``ordinary`` (greedy, gamma 0), ``speculative`` (greedy) or ``sampled``; ``prompt``
    the number of ``prompt_id`` among the plan's prompts; ``replicate`` counts within one prompt,
    setting and gamma.
    """

    index: int
    arm: str
    prompt: int
    prompt_id: str
    replicate: int
    request: DecodeRequest

    @property
    def setting(self) -> str:
        """Label of the sampling setting."""
        return self.request.sampling.label


@dataclass(frozen=True)
class Plan:
    """Ordered trials with what they may cost and show.

    ``estimate`` is JSON-able. Submit in order, up to ``budget.max_batch`` at a time. ``deviation`` is
    what an approximate artifact admits; the budget's tolerance is that already. ``seed`` is the one
    that this run draws with; ``before`` says what the runs it continues have done. Without
    ``positions`` nobody tells which tokens were drafts and which followed a window.
    """

    budget: EquivalenceBudget
    trials: tuple[Trial, ...]
    estimate: Mapping[str, Any]
    settings: tuple[SamplingSettings, ...]
    gamma: int
    contract: str
    greedy_prompts: int
    kind_is_past: bool
    end_tokens: tuple[int, ...]
    seed: int
    deviation: float | None = None
    before: Before = _FIRST
    positions: bool = True

    @property
    def design(self) -> dict[str, Any]:
        """JSON-able: what was declared before the first token. It is stored with the evidence."""
        sampled = self.budget.sampled
        return {
            "contract": self.contract,
            "alpha": self.budget.alpha,
            "declared_effect": self.estimate["declared_effect"],
            "settings": [setting.label for setting in self.settings],
            "gammas": self.estimate["gammas"],
            "prompts": len({t.prompt_id for t in self.trials if t.arm == SAMPLED}),
            "order": f"random, seed {self.seed}",
            "replicates": self.budget.replicates,
            "greedy_prompts": self.greedy_prompts,
            "tokens_per_setting": [sampled.min_tokens, sampled.max_tokens],
        }


def admitting(budget: EquivalenceBudget, deviation: float | None) -> EquivalenceBudget:
    """The budget with an admitted deviation in place of its tolerance, in window and bonus alike."""
    if deviation is None:
        return budget
    return replace(budget, tolerance=replace(budget.tolerance, window=deviation, bonus=deviation))


def plan(
    policy: Policy,
    artifact: Mapping[str, Any],
    *,
    prompts: Sequence[TokenPrompt],
    sampling: Sequence[SamplingSettings] = (),
    end_tokens: Sequence[int] = (),
    seed: int | None = None,
    rates: Rates | None = None,
    before: Before = _FIRST,
    windows: Sequence[int] | None = None,
) -> Plan:
    """Lay out the trials: greedy identity first, then sampled arms until the token budget is spent.

    Sampled settings are the non-greedy ones of ``sampling``, or the policy's where there are none.
    Each prompt, taken in random order, runs ``replicates`` times per setting and gamma with
    different seeds, side by side; prompts return when all have had their turn. ``seed`` defaults to
    the policy's. A plan that continues earlier runs (``before``) derives another from it, compares
    prompts that have no greedy texts yet, and begins with those whose turn it is: no token is drawn
    twice, and repeating the plan repeats its requests. ``windows`` are all there are where an engine
    cannot be asked for another.

    Raises:
        InputError: there is no prompt, or the artifact has no window.
    """
    acceptance = artifact.get("acceptance", {})
    contract = str(acceptance.get("contract", "exact"))
    deviation = acceptance.get("deviation") if contract == "approximate" else None
    budget = admitting(policy.equivalence, deviation)
    gamma = int(artifact["gamma"])
    if not prompts:
        raise InputError("is empty", field="prompts", remedy="give at least one prompt")
    if gamma < 1:
        raise InputError("must be 1 or more", field="gamma", value=gamma, remedy="set a window")
    seed = continued_seed(budget.seed if seed is None else seed, before.runs)
    rng = np.random.default_rng(seed)
    settings = tuple(dict.fromkeys(s for s in sampling if not s.greedy)) or budget.sampled.settings
    # Every window that serving may choose is tested: exactness at 4 says nothing of a bug at 2.
    swept = [g for g in policy.serving.gammas if g <= gamma]
    wanted = (gamma, *budget.sampled.gammas, *swept) if windows is None else windows
    gammas = tuple(dict.fromkeys(wanted))
    order = rng.permutation(len(prompts))
    fresh = [i for i in order.tolist() if prompts[i].id not in before.compared]
    chosen = fresh[: budget.greedy.prompts]
    make = _Factory(budget, tuple(prompts), tuple(end_tokens), rng)
    trials = [
        make.trial(arm, i, 0, GREEDY, g)
        for i in chosen
        for arm, g in ((ORDINARY, 0), (SPECULATIVE, gamma))
    ]
    trials += make.sampled(settings, gammas, before.turns)
    return Plan(
        budget=budget,
        trials=tuple(trials),
        estimate=_estimate(budget, len(chosen), settings, gammas, rates, before=before),
        settings=settings,
        gamma=gamma,
        contract=contract,
        greedy_prompts=len(chosen),
        kind_is_past=artifact.get("proposer", {}).get("kind") in _FIXED_WINDOWS,
        end_tokens=tuple(end_tokens),
        seed=seed,
        deviation=deviation,
        before=before,
    )


class _Factory:
    """Numbers trials and draws their seeds."""

    def __init__(
        self,
        budget: EquivalenceBudget,
        prompts: tuple[TokenPrompt, ...],
        end_tokens: tuple[int, ...],
        rng: np.random.Generator,
    ) -> None:
        self._budget, self._prompts, self._end_tokens = budget, prompts, end_tokens
        self._rng = rng
        self._count = 0

    def trial(
        self, arm: str, prompt: int, replicate: int, sampling: SamplingSettings, gamma: int
    ) -> Trial:
        index, self._count = self._count, self._count + 1
        request = DecodeRequest(
            request_id=f"equivalence-{index:06d}",
            prompt=self._prompts[prompt].tokens,
            max_tokens=self._budget.tokens_per_request,
            sampling=sampling,
            seed=int(self._rng.integers(2**63)),
            gamma=gamma,
            end_tokens=self._end_tokens,
            evidence=arm == SAMPLED,
        )
        return Trial(index, arm, prompt, self._prompts[prompt].id, replicate, request)

    def sampled(
        self,
        settings: Sequence[SamplingSettings],
        gammas: Sequence[int],
        turns: Mapping[str, int],
    ) -> Iterator[Trial]:
        budget = self._budget
        arms = [(s, g) for s in settings for g in gammas]
        wanted = math.ceil(budget.sampled.max_tokens / budget.tokens_per_request)
        # Per setting; a block gives each setting replicates × gammas requests.
        blocks = math.ceil(_SPARE * wanted / (budget.replicates * len(gammas)))
        done = [turns.get(prompt.id, 0) for prompt in self._prompts]
        waiting = [n < max(done) for n in done]
        order = (
            [i for i in self._rng.permutation(len(done)).tolist() if waiting[i]] if turns else []
        )
        cycle = -1 if not order else 0
        for _ in range(blocks):
            if not order:
                order = self._rng.permutation(len(self._prompts)).tolist()
                cycle += 1
            prompt = order.pop()
            for arm in self._rng.permutation(len(arms)):
                sampling, gamma = arms[arm]
                for i in range(budget.replicates):
                    replicate = done[prompt] // len(arms) + cycle * budget.replicates + i
                    yield self.trial(SAMPLED, prompt, replicate, sampling, gamma)


def _bonus_share(gammas: Sequence[int]) -> float:
    """Share of bonus tokens where every gamma gets as many tokens, at acceptance .76."""
    a = _REFERENCE_ACCEPTANCE
    shares = [a**g * (1 - a) / (1 - a ** (g + 1)) for g in gammas]
    return sum(shares) / len(shares)


def _estimate(
    budget: EquivalenceBudget,
    greedy_prompts: int,
    settings: Sequence[SamplingSettings],
    gammas: Sequence[int],
    rates: Rates | None,
    *,
    before: Before,
) -> dict[str, Any]:
    greedy = 2 * greedy_prompts * budget.tokens_per_request
    low = greedy + max(0, len(settings) * budget.sampled.min_tokens - before.tokens)
    high = greedy + len(settings) * budget.sampled.max_tokens
    share = _bonus_share(gammas)
    per_setting = {
        "window": tokens_to_pass(_LARGEST_VARIANCE, budget.tolerance.window) / (1 - share),
        "bonus": tokens_to_pass(_LARGEST_VARIANCE, budget.tolerance.bonus) / share,
    }
    sampled = len(settings) * budget.sampled.max_tokens
    known = before.tokens + sampled
    return {
        "tokens": high,
        "tokens_at_least": low,
        "greedy_tokens": greedy,
        "sampled_tokens": sampled,
        "settings": [s.label for s in settings],
        "gammas": list(gammas),
        "earlier_runs": before.runs or None,
        "earlier_tokens": before.tokens if before.runs else None,
        "minutes": _minutes(high, rates),
        "minutes_at_least": _minutes(low, rates),
        "alpha": budget.alpha,
        "declared_effect": _declared_effect(budget, len(settings), before.tokens),
        "attainable_power": attainable(known, alpha=budget.alpha),
        "tokens_to_pass_tolerance": {k: math.ceil(v) for k, v in per_setting.items()},
        "tolerance_attainable": max(per_setting.values()) <= known / len(settings),
        "assumes": "median detection times of synthetic models, ±30 %; acceptance 0.76",
    }


def _declared_effect(
    budget: EquivalenceBudget, settings: int, before: int
) -> dict[str, Any] | None:
    """The policy's effect, the tokens of all settings it needs, and what the budget makes of it.

    ``before`` are the sampled tokens of the runs that this one continues.
    """
    declared = budget.sampled.effect
    if declared is None:
        return None
    effect, alpha = REFERENCE_EFFECTS[declared.share], budget.alpha
    needed = tokens_needed(effect, alpha=alpha, power=declared.power)
    least = max(before, settings * budget.sampled.min_tokens)
    most = before + settings * budget.sampled.max_tokens
    return {
        "share": declared.share,
        "power": declared.power,
        "tokens_needed": needed,
        "within_budget": needed <= most,
        "power_at_least": round(detection(effect, least, alpha=alpha), 2),
        "power_at_most": round(detection(effect, most, alpha=alpha), 2),
    }


def _minutes(tokens: int, rates: Rates | None) -> float | None:
    """Every token is decoded once and scored once; None where no rate was measured."""
    if rates is None:
        return None
    seconds = tokens / rates.decode_tokens_per_s + tokens / rates.score_tokens_per_s
    return round(seconds / 60, 1)


def evidence_of(trial: Trial, emissions: Sequence[Emission], scored: Scored) -> RequestEvidence:
    """Join the emissions of a finished request with the target's opinion of it.

    ``scored.p`` [n, V] must cover every emitted token. q is kept where any emission has it; other
    rows become NaN.

    Raises:
        InputError: the scored rows do not match the tokens.
    """
    n, V = scored.p.shape
    lengths = [len(e.tokens) for e in emissions]
    if sum(lengths) != n:
        raise InputError(
            f"has {n} rows for {sum(lengths)} tokens",
            field="scored.p",
            value=trial.request.request_id,
            remedy="score exactly the emitted tokens",
        )
    q = None
    if any(e.q is not None for e in emissions):
        unknown = np.float32(np.nan)
        q = np.concatenate(
            [e.q if e.q is not None else np.full((len(e.tokens), V), unknown) for e in emissions]
        )
    return RequestEvidence(
        prompt=trial.prompt,
        replicate=trial.replicate,
        request=trial.index,
        token=_column([t for e in emissions for t in e.tokens]),
        p=scored.p,
        q=q,
        k=_column([k for m in lengths for k in range(m)]),
        round=_column([e.round for e in emissions for _ in e.tokens]),
        kind=_column([k for e in emissions for k in e.kind]),
        draft=_column([d for e in emissions for d in e.draft]),
    )


def _column(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)
