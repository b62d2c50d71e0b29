"""Equivalence of two servers that already run, by their texts; everything else is named.

Greedy texts are compared place by place, sampled ones by two-sample tests. Texts can show that a
black box is wrong and never that it is right: FAIL on a departure that numerics do not explain, or
on samples that chance does not, ERROR without a usable baseline, else INCONCLUSIVE with the list of
what is missing. Where the weights are declared and the servers tell token ids, more can be said:
see ``servers_own_forward``, whose tables ``evaluate`` takes too.
``plan`` → run its steps into the ``texts`` and ``samples`` tables → ``evaluate``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gatekeeper.core.claims import Claim
from gatekeeper.core.decoding import GREEDY, SamplingSettings
from gatekeeper.core.equations import EQUATIONS
from gatekeeper.core.stats import server_samples, server_texts
from gatekeeper.core.stats.server_texts import BASELINE, CANDIDATE, FIRST, REPEAT
from gatekeeper.core.stats.two_sample import BLIND
from gatekeeper.core.verdicts import GateResult, Outcome, Part, worst
from gatekeeper.errors import InputError
from gatekeeper.gates import servers_own_forward
from gatekeeper.gates.servers_missing import account, missing, parts, readings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.decoding import Rates
    from gatekeeper.core.policy_schema import EquivalenceBudget, Policy

__all__ = [
    "ALTERNATIVES",
    "COMPANY",
    "REPLICATES",
    "TABLES",
    "TWO_SAMPLE",
    "Plan",
    "TextPrompt",
    "TextStep",
    "evaluate",
    "fitting",
    "plan",
]

TABLES = ("texts", "samples", "servers")
"""Evidence tables: see ``core.stats.server_texts`` and ``server_samples``, and ``arm``, ``name``,
``value``."""

TWO_SAMPLE = "two-sample"
"""Name of the rule by which sampled texts were judged."""

REPLICATES = 4
"""Sampled answers of each server to one prompt: few prompts then have labellings enough."""

_LEAST_SAMPLED = 3

ALTERNATIVES = 5
"""Log-probabilities asked for per token: what every server offers that offers any."""

PASSES, COMPANY = 3, 2
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class TextPrompt:
    """A prompt as ChatML: the servers apply tokenizers and templates of their own."""

    id: str
    slice: str
    text: str

    @property
    def estimated_tokens(self) -> int:
        """Length as usual for English and code; the servers' tokenizers are not disclosed."""
        return math.ceil(len(self.text) / CHARACTERS_PER_TOKEN)


@dataclass(frozen=True)
class TextStep:
    """Requests of one pass, ``concurrency`` of them at a time; greedy unless ``seeds`` has one each."""

    arm: str
    prompts: tuple[TextPrompt, ...]
    concurrency: int
    max_tokens: int
    top: int
    sampling: SamplingSettings = GREEDY
    seeds: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Output tokens at most."""
        return self.max_tokens * len(self.prompts)


@dataclass(frozen=True)
class Plan:
    """``steps`` in order; ``estimate`` is for people; ``why`` texts have to do."""

    budget: EquivalenceBudget
    gamma: int | None
    steps: tuple[TextStep, ...]
    estimate: Mapping[str, Any]
    why: str = "no target's files are declared"


def plan(
    policy: Policy,
    artifact: Mapping[str, Any],
    *,
    prompts: Sequence[TextPrompt],
    seed: int,
    rates: Rates | None = None,
) -> Plan:
    """Plan three greedy passes over as many prompts as the policy's sampled tokens pay for.

    Prompts come in small groups, the order of the passes random in each, so that drift hits all
    alike. The repeat runs a group together: that shows what a batch of another shape changes, as
    verification makes one too. Then as many tokens again are sampled, each prompt by both servers
    with seeds of their own.

    Raises:
        InputError: no prompts, or every one is longer than the policy allows.
    """
    prompts = fitting(prompts, policy.serving.max_prompt_tokens)
    budget = policy.equivalence
    length = budget.tokens_per_request
    wanted = max(budget.greedy.prompts, budget.sampled.max_tokens // (PASSES * length))
    rng = np.random.default_rng(seed)
    chosen = [prompts[i] for i in rng.permutation(len(prompts))[:wanted].tolist()]
    steps: list[TextStep] = []
    for begin in range(0, len(chosen), COMPANY):
        group = tuple(chosen[begin : begin + COMPANY])
        arms = [
            TextStep(BASELINE, group, 1, length, ALTERNATIVES),
            TextStep(CANDIDATE, group, 1, length, 0),
            TextStep(REPEAT, group, COMPANY, length, ALTERNATIVES),
            TextStep(FIRST, group, 1, 1, ALTERNATIVES),
        ]
        steps += [arms[i] for i in rng.permutation(len(arms)).tolist()]
    steps += _sampled(budget, chosen, rng)
    gamma = artifact["gamma"]
    estimate = _estimate(budget, steps, rates)
    return Plan(budget, None if gamma is None else int(gamma), tuple(steps), estimate)


def fitting(prompts: Sequence[TextPrompt], max_tokens: int) -> list[TextPrompt]:
    """Return the prompts of at most ``max_tokens``, estimated at four characters a token.

    Raises:
        InputError: none is left.
    """
    kept = [prompt for prompt in prompts if prompt.estimated_tokens <= max_tokens]
    if not kept:
        shortest = min((prompt.estimated_tokens for prompt in prompts), default=None)
        raise InputError(
            "leaves no prompt",
            field="max_prompt_tokens",
            value=max_tokens,
            remedy="give at least one prompt" if shortest is None else f"allow {shortest} tokens",
        )
    return kept


def _sampled(
    budget: EquivalenceBudget, prompts: Sequence[TextPrompt], rng: np.random.Generator
) -> list[TextStep]:
    """Sampled answers of both servers, the order of the two random for each prompt."""
    length = budget.tokens_per_request
    count = max(_LEAST_SAMPLED, budget.sampled.max_tokens // (2 * REPLICATES * length))
    setting = next(
        (one for one in budget.sampled.settings if _has_words(one)),
        SamplingSettings(temperature=1.0),
    )
    steps = []
    for prompt in prompts[:count]:
        both = [
            TextStep(
                arm,
                (prompt,) * REPLICATES,
                COMPANY,
                length,
                0,
                setting,
                tuple(rng.integers(2**31, size=REPLICATES).tolist()),
            )
            for arm in (BASELINE, CANDIDATE)
        ]
        steps += [both[i] for i in rng.permutation(2).tolist()]
    return steps


def _has_words(setting: SamplingSettings) -> bool:
    """Whether OpenAI's API can ask for a setting."""
    plain = SamplingSettings(
        temperature=setting.temperature,
        top_p=setting.top_p,
        presence_penalty=setting.presence_penalty,
        frequency_penalty=setting.frequency_penalty,
    )
    return setting == plain


def _estimate(
    budget: EquivalenceBudget, steps: Sequence[TextStep], rates: Rates | None
) -> dict[str, Any]:
    tokens = sum(step.tokens for step in steps)
    prompt_tokens = sum(prompt.estimated_tokens for step in steps for prompt in step.prompts)
    count = sum(len(step.prompts) for step in steps if step.arm == BASELINE and not step.seeds)
    share = 1 - budget.alpha ** (1 / count)
    return {
        "gate": "equivalence",
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "prompts": count,
        "minutes": None if rates is None else rates.minutes(tokens, prompt_tokens),
        "attainable_power": (
            f"a fault that changes at least {share:.0%} of greedy texts within "
            f"{budget.tokens_per_request} tokens is found with probability {1 - budget.alpha:g}; "
            "sampled texts are compared by two-sample tests, which miss mild faults; never PASS: a "
            "running server does not show weights, sampler or sampled distribution (declare the "
            "target's files with --target to have its tokens scored)"
        ),
    }


def evaluate(
    budget: EquivalenceBudget, tables: Mapping[str, pd.DataFrame], *, why: str = Plan.why
) -> GateResult:
    """Judge a run from its evidence tables alone: by texts never PASS, ``why`` says what forbids more.

    Raises:
        EvidenceError: a table does not hold what it must.
    """
    if "context" in tables:
        return servers_own_forward.evaluate(budget, tables)
    texts, said = tables["texts"], readings(tables["servers"])
    figures = _Figures(texts)
    verdict = server_texts.judge(texts, alpha=budget.alpha)
    limit = figures.add("tie_threshold", "servers.tie_threshold", "nats")
    numbers = {
        "rule": "text",
        "sigma": None,
        "tau": limit,
        "prompts": figures.add("compared", "servers.compared", "prompts", arm=CANDIDATE),
        "positions": figures.add("tokens", "servers.tokens", "tokens", arm=CANDIDATE),
        "mismatches": figures.add("faults", "servers.faults", "prompts", threshold=limit),
        "ties": figures.add("ties", "servers.ties", "prompts", threshold=limit),
        "undecided": figures.add("undecided", "servers.undecided", "prompts", threshold=limit),
        "differing": figures.add("differing", "servers.differing", "prompts", arm=CANDIDATE),
        "baseline_differing": figures.add(
            "baseline_differing", "servers.differing", "prompts", arm=REPEAT
        ),
        "first_token_difference": figures.add(
            "first_token_difference", "servers.first_token_difference", "nats", arm=FIRST
        ),
        "baseline_first_token_difference": figures.add(
            "baseline_first_token_difference",
            "servers.first_token_difference",
            "nats",
            arm=REPEAT,
        ),
    }
    sampled = _two_sample(budget, tables["samples"], figures)
    lacking = missing(said, targets=_targets(numbers), sampled=sampled.detail)
    judged = [
        Part("greedy text", verdict.outcome, verdict.detail, figures=numbers),
        sampled,
        *servers_own_forward.lost_answers(pd.concat([texts, tables["samples"]])),
        *parts(lacking),
    ]
    outcome = worst(part.outcome for part in judged if part.mandatory)
    first = verdict.first
    return GateResult(
        gate="equivalence",
        outcome=outcome,
        parts=tuple(judged),
        summary={
            "contract": "exact",
            "identity_rule": "text",
            "gamma": _whole(said.get("pair", {}).get("gamma")),
            "settings": [],
            "arms": {
                "baseline": said.get("baseline", {}),
                "candidate": said.get("candidate", {}),
            },
            "greedy": numbers,
            "strict": None,
            "tolerance": [],
            "sampled": sampled.figures,
            "tokens": 0,  # sampled and scored ones, as everywhere in this summary
            "missing": account(lacking),
            "scoring": {
                "rule": TWO_SAMPLE,
                "why": why,
                "tokens": sampled.figures["tokens"],
                "control_tokens": None,
                "blind": list(BLIND),
            },
            "counter_example": None
            if first is None
            else {
                "part": "greedy text",
                "prompt": first.prompt,
                "position": first.position,
                "token": first.found,
                "expected": first.expected,
                "deficit": first.deficit,
                "target_probability": None,
            },
        },
        claims=tuple(figures.claims),
        still_needed=None if outcome is Outcome.FAIL else _still_needed(judged),
    )


def _still_needed(judged: Sequence[Part]) -> str:
    """Every mandatory part that is open, the unverifiable ones by name."""
    open_parts = [part for part in judged if part.mandatory and part.outcome is not Outcome.PASS]
    unknown = [part.name for part in open_parts if part.detail.startswith("unverified")]
    rest = [f"{part.name}: {part.detail}" for part in open_parts if part.name not in unknown]
    named = f"what a running server does not disclose: {', '.join(unknown)}"
    remedy = "declare the target's files with --target, or register both as files and gate those"
    return "; ".join([*rest, f"{named} ({remedy})"])


def _targets(numbers: Mapping[str, float | str | None]) -> str:
    """What first tokens say about the weights: no draft takes part in them."""
    across, within = (
        numbers["first_token_difference"],
        numbers["baseline_first_token_difference"],
    )
    if across is None:
        return "no log-probabilities of first tokens compare them"
    noise = "" if within is None else f" ({within:.3g} between two runs of the baseline)"
    if across == 0:
        return "both servers give their first tokens the very same log-probabilities"
    return f"log-probabilities of first tokens differ by at most {across:.3g} nats{noise}"


def _two_sample(budget: EquivalenceBudget, samples: pd.DataFrame, figures: _Figures) -> Part:
    """Sampled texts: FAIL where chance does not explain them, and no success ever."""
    inputs = {"pieces": budget.tokens_per_request, "seed": budget.seed}
    p = {
        test: figures.add(
            f"two_sample.{test}", "servers.two_sample", "probability", samples, test=test, **inputs
        )
        for test in server_samples.TESTS
    }
    numbers = {
        **p,
        "answers": figures.add("samples", "servers.samples", "answers", samples),
        "tokens": figures.add("sampled_tokens", "servers.sampled_tokens", "tokens", samples),
    }
    known = [value for value in p.values() if value is not None]
    if len(known) < len(p):
        outcome, detail = Outcome.INCONCLUSIVE, "too few sampled answers of both servers to compare"
    else:
        outcome = Outcome.FAIL if min(known) <= budget.alpha / len(p) else Outcome.PASS
        shown = (
            f"chance alone makes texts differ so much with p = {p['mmd']:.2g}, and one server repeat "
            f"itself so much more with p = {p['repeats']:.2g}; "
            f"{budget.alpha / len(p):.2g} or less would be a difference"
        )
        detail = f"{numbers['answers']:.0f} sampled answers by two-sample tests: {shown}"
    return Part("sampled text", outcome, detail, figures=numbers)


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


class _Figures:
    """Figures of a table, of ``texts`` where none is named, each through the equation that verifies it."""

    def __init__(self, texts: pd.DataFrame) -> None:
        self._texts = texts
        self.claims: list[Claim] = []

    def add(
        self,
        name: str,
        equation: str,
        unit: str,
        samples: pd.DataFrame | None = None,
        **inputs: str | float | None,
    ) -> float | None:
        table = "texts" if samples is None else "samples"
        value = EQUATIONS[equation].function(self._texts if samples is None else samples, **inputs)
        if value is None:
            return None
        self.claims.append(
            Claim(
                id=f"equivalence.servers.{name}",
                equation=equation,
                inputs={"table": table, **inputs},
                value=float(value),
                unit=unit,
                status="measured",
                source=f"equivalence gate, table {table}",
            )
        )
        return float(value)
