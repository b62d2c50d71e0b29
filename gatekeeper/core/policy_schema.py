"""The policy document: budgets, limits and rules that were declared before any gate ran."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import rfc8785

from gatekeeper.core.decoding import SamplingSettings  # noqa: TC001 - read() resolves it
from gatekeeper.core.documents import check, plain, read
from gatekeeper.core.verdicts import GATES
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "SHARES",
    "BypassRules",
    "DeclaredEffect",
    "EquivalenceBudget",
    "GreedyBudget",
    "MinimumValue",
    "OutcomeBudget",
    "Policy",
    "SampledBudget",
    "ServingBudget",
    "ServingLimits",
    "Slo",
    "ToleranceBudget",
    "smallest_pairs",
]

MIN_REPLICATES = 2
MIN_CONFIRM_BLOCKS = 3
COIN_TOSS = 0.5
SHARES = (0.02, 0.1, 0.3)
"""Effects that can be declared: those that the e-process bank has a member for."""


@dataclass(frozen=True)
class GreedyBudget:
    """Prompts decoded greedily in three arms; numeric ties reach ``tau_sigma`` × logit sd."""

    prompts: int
    tau_sigma: float

    def __post_init__(self) -> None:
        check(
            [
                ("equivalence.greedy.prompts", self.prompts, self.prompts >= 1, "use 1 or more"),
                ("equivalence.greedy.tau_sigma", self.tau_sigma, self.tau_sigma > 0, "use 10"),
            ]
        )


@dataclass(frozen=True)
class DeclaredEffect:
    """What the sampled tokens are to detect, and how surely.

    ``share`` of all tokens come from the draft unchecked; ``power`` is the probability to find that.
    """

    share: float
    power: float

    def __post_init__(self) -> None:
        at = "equivalence.sampled.effect"
        useful = COIN_TOSS <= self.power < 1
        check(
            [
                (f"{at}.share", self.share, self.share in SHARES, f"use one of {SHARES}"),
                (f"{at}.power", self.power, useful, "use a value in [0.5, 1), such as 0.9"),
            ]
        )


@dataclass(frozen=True)
class SampledBudget:
    """Tokens per sampling setting; ``gammas`` are extra arms beside the artifact's own gamma.

    ``effect`` is declared before the run; the plan says how many tokens it needs.
    """

    min_tokens: int
    max_tokens: int
    settings: tuple[SamplingSettings, ...]
    gammas: tuple[int, ...]
    effect: DeclaredEffect | None = None

    def __post_init__(self) -> None:
        at = "equivalence.sampled"
        tokens = 1 <= self.min_tokens <= self.max_tokens
        hot = len(self.settings) >= 1 and not any(s.greedy for s in self.settings)
        arms = 1 in self.gammas and all(g >= 1 for g in self.gammas)
        check(
            [
                (f"{at}.max_tokens", self.max_tokens, tokens, "use 1 <= min_tokens <= max_tokens"),
                (
                    f"{at}.settings",
                    [s.label for s in self.settings],
                    hot,
                    "give at least one setting with temperature above 0",
                ),
                (
                    f"{at}.gammas",
                    list(self.gammas),
                    arms,
                    "include 1: bonus faults are nearly invisible in longer windows",
                ),
            ]
        )


@dataclass(frozen=True)
class ToleranceBudget:
    """Largest mean deviation of a declared feature: in the window, and at the bonus position."""

    window: float
    bonus: float
    pass_alpha: float = 0.05
    fail_alpha: float = 0.001

    def __post_init__(self) -> None:
        names = ("window", "bonus", "pass_alpha", "fail_alpha")
        check(
            [
                (f"equivalence.tolerance.{n}", v, 0 < v < 1, "use a value in (0, 1)")
                for n, v in ((n, getattr(self, n)) for n in names)
            ]
        )


@dataclass(frozen=True)
class EquivalenceBudget:
    """What the equivalence gate may spend. ``alpha`` is the false-alarm rate of the e-process."""

    alpha: float
    seed: int
    max_batch: int
    replicates: int
    tokens_per_request: int
    greedy: GreedyBudget
    sampled: SampledBudget
    tolerance: ToleranceBudget

    def __post_init__(self) -> None:
        at = "equivalence"
        check(
            [
                (f"{at}.alpha", self.alpha, 0 < self.alpha < 1, "use a value in (0, 1)"),
                (f"{at}.max_batch", self.max_batch, self.max_batch >= 1, "use 1 or more"),
                (
                    f"{at}.replicates",
                    self.replicates,
                    self.replicates >= MIN_REPLICATES,
                    "use 2 or more: the duplicate test compares replicates",
                ),
                (
                    f"{at}.tokens_per_request",
                    self.tokens_per_request,
                    self.tokens_per_request >= 1,
                    "use 1 or more",
                ),
            ]
        )


@dataclass(frozen=True)
class ServingLimits:
    """What a load region must hold to pass; ratios are speculative / ordinary unless said.

    ``min_speedup``: the lower bound of ordinary TPOT / speculative TPOT must exceed it.
    ``max_slowdown_ratio``: worst class's slowdown over the best class's.
    """

    min_speedup: float
    max_ttft_ratio: float
    max_memory_bytes: int | None
    max_slowdown_ratio: float

    def __post_init__(self) -> None:
        at = "serving.limits"
        memory = self.max_memory_bytes is None or self.max_memory_bytes > 0
        check(
            [
                (f"{at}.min_speedup", self.min_speedup, self.min_speedup >= 1, "use 1 or more"),
                (f"{at}.max_ttft_ratio", self.max_ttft_ratio, self.max_ttft_ratio > 0, "use > 0"),
                (f"{at}.max_memory_bytes", self.max_memory_bytes, memory, "use bytes or null"),
                (
                    f"{at}.max_slowdown_ratio",
                    self.max_slowdown_ratio,
                    self.max_slowdown_ratio >= 1,
                    "use 1 or more",
                ),
            ]
        )


@dataclass(frozen=True)
class Slo:
    """Service-level objectives in seconds; null is no objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        check(
            [
                (f"slo.{n}", v, v is None or v > 0, "use seconds above 0 or null")
                for n, v in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s))
            ]
        )


@dataclass(frozen=True)
class ServingBudget:
    """Sweep, then confirmation on fresh blocks, for every gamma × concurrency."""

    gammas: tuple[int, ...]
    concurrency: tuple[int, ...]
    tokens_per_request: int
    requests_per_block: int
    sweep_blocks: int
    confirm_blocks: int
    confidence: float
    limits: ServingLimits
    slo: Slo
    max_prompt_tokens: int

    def __post_init__(self) -> None:
        at = "serving"
        checks: list[tuple[str, object, bool, str]] = [
            (
                f"{at}.{name}",
                list(values),
                bool(values) and all(v >= 1 for v in values) and sorted(set(values)) == [*values],
                "list distinct values of 1 or more in rising order",
            )
            for name, values in (("gammas", self.gammas), ("concurrency", self.concurrency))
        ]
        checks += [
            (f"{at}.{name}", getattr(self, name), getattr(self, name) >= low, f"use {low} or more")
            for name, low in (
                ("tokens_per_request", 2),  # one token has no TPOT
                ("requests_per_block", 1),
                ("sweep_blocks", 1),
                ("confirm_blocks", MIN_CONFIRM_BLOCKS),  # a paired t needs a variance
                ("max_prompt_tokens", 1),
            )
        ]
        checks.append(
            (f"{at}.confidence", self.confidence, COIN_TOSS < self.confidence < 1, "use e.g. 0.95")
        )
        check(checks)


def smallest_pairs(margin: float, alpha: float) -> int:
    """Smallest n of pairs that can show non-inferiority when no pair is discordant.

    Tango's score statistic with b = c = 0 is sqrt(n·margin / (1 − margin)); it passes from
    n >= z²(1 − margin) / margin, z the one-sided normal quantile of ``alpha``.
    """
    z = NormalDist().inv_cdf(1 - alpha)
    return math.ceil(z * z * (1 - margin) / margin)


@dataclass(frozen=True)
class OutcomeBudget:
    """Paired tasks: one-sided ``alpha`` against a loss of ``margin`` in success.

    ``pairs`` in all, ``samples`` of each task and arm; ``max_tokens`` per answer; the candidate's
    cost per successful outcome may be ``max_cost_ratio`` times the baseline's; ``concurrency``
    requests in flight where the serving gate has not chosen fewer; ``sampling`` at a temperature
    above 0, since without chance every sample of a task would be the same.
    """

    margin: float
    alpha: float
    pairs: int
    samples: int
    max_tokens: int
    max_cost_ratio: float
    concurrency: int
    sampling: SamplingSettings

    def __post_init__(self) -> None:
        at = "outcome"
        check(
            [
                (f"{at}.margin", self.margin, 0 < self.margin < 1, "use a value in (0, 1)"),
                (f"{at}.alpha", self.alpha, 0 < self.alpha < COIN_TOSS, "use a value in (0, 0.5)"),
            ]
        )
        least = smallest_pairs(self.margin, self.alpha)
        whole = self.samples >= 1 and self.pairs % self.samples == 0
        check(
            [
                (f"{at}.pairs", self.pairs, self.pairs >= least, f"use {least} or more"),
                (f"{at}.samples", self.samples, whole, "use a divisor of pairs"),
                (f"{at}.max_tokens", self.max_tokens, self.max_tokens >= 1, "use 1 or more"),
                (
                    f"{at}.max_cost_ratio",
                    self.max_cost_ratio,
                    self.max_cost_ratio > 0,
                    "use a ratio above 0",
                ),
                (f"{at}.concurrency", self.concurrency, self.concurrency >= 1, "use 1 or more"),
                (
                    f"{at}.sampling",
                    self.sampling.label,
                    not self.sampling.greedy,
                    "use a temperature above 0",
                ),
            ]
        )


@dataclass(frozen=True)
class BypassRules:
    """Request-time limits that go into every lease's envelope; null switches a rule off."""

    min_acceptance: float | None
    min_remaining_tokens: int | None
    max_memory_utilisation: float | None
    max_draft_queue: int | None

    def __post_init__(self) -> None:
        shares = ("min_acceptance", "max_memory_utilisation")
        counts = ("min_remaining_tokens", "max_draft_queue")
        check(
            [
                (f"bypass.{n}", v, v is None or 0 <= v <= 1, "use a share in [0, 1] or null")
                for n, v in ((n, getattr(self, n)) for n in shares)
            ]
            + [
                (f"bypass.{n}", v, v is None or v >= 0, "use 0 or more, or null")
                for n, v in ((n, getattr(self, n)) for n in counts)
            ]
        )


@dataclass(frozen=True)
class MinimumValue:
    """Value per task that the low end of the interval must exceed."""

    per_task: float
    currency: str

    def __post_init__(self) -> None:
        check([("minimum_value.currency", self.currency, bool(self.currency), "name it: EUR")])


@dataclass(frozen=True)
class Policy:
    """A policy: which gates are mandatory, what each may spend, and when a decision lapses.

    Durations in seconds. ``minimum_value`` None: value is reported and not demanded.
    ``hysteresis_s``: how long enable must have been the verdict before it takes effect;
    ``cooldown_s``: how long after a fall-back to bypass no enable follows.
    """

    name: str
    description: str
    mandatory_gates: tuple[str, ...]
    allow_approximate: bool
    minimum_value: MinimumValue | None
    evidence_ttl_s: float
    decision_ttl_s: float
    max_stale_s: float
    hysteresis_s: float
    cooldown_s: float
    equivalence: EquivalenceBudget
    serving: ServingBudget
    outcome: OutcomeBudget
    bypass: BypassRules

    def __post_init__(self) -> None:
        for gate in self.mandatory_gates:
            if gate not in GATES:
                raise InputError(
                    "is not a gate",
                    field="mandatory_gates",
                    value=gate,
                    remedy=f"use {', '.join(GATES)}",
                )
        # exactness and the envelope come from these two: without them nothing could be enabled
        needed = {"equivalence", "serving"} <= set(self.mandatory_gates)
        gates = list(self.mandatory_gates)
        checks: list[tuple[str, object, bool, str]] = [
            ("name", self.name, bool(self.name), "name the policy"),
            ("mandatory_gates", gates, needed, "include equivalence and serving"),
        ]
        checks += [
            (name, getattr(self, name), getattr(self, name) > 0, "use seconds above 0")
            for name in ("evidence_ttl_s", "decision_ttl_s")
        ]
        checks += [
            (name, getattr(self, name), getattr(self, name) >= 0, "use seconds, 0 or more")
            for name in ("max_stale_s", "hysteresis_s", "cooldown_s")
        ]
        check(checks)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Policy:
        """Read a policy document.

        Raises:
            UnknownKey: a key that nothing reads, named by its dotted field.
            InputError: a key is missing, or a value has the wrong type or range.
        """
        return read(cls, dict(document), field="")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        document: dict[str, Any] = plain(self)
        return document

    @property
    def digest(self) -> str:
        """The sha256 of the document as canonical JSON (RFC 8785); decisions cite it."""
        return hashlib.sha256(rfc8785.dumps(self.to_dict())).hexdigest()
