"""From gate results and value to one decision: a pure function that fails closed to bypass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gatekeeper.core.bypass import BYPASS, ENABLE, Envelope
from gatekeeper.core.documents import compared, in_full
from gatekeeper.core.policy_schema import (
    BypassRules,
    EquivalenceBudget,
    GreedyBudget,
    MinimumValue,
    OutcomeBudget,
    Policy,
    SampledBudget,
    ServingBudget,
    ServingLimits,
    Slo,
    ToleranceBudget,
)
from gatekeeper.core.pricing_level import UNSTATED_WINDOW, windows_unstated
from gatekeeper.core.verdicts import GATES, GateResult, Outcome
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from gatekeeper.core.value import ValueInterval

__all__ = [
    "REASONS",
    "BypassRules",
    "EquivalenceBudget",
    "GreedyBudget",
    "MinimumValue",
    "OutcomeBudget",
    "Override",
    "Policy",
    "SampledBudget",
    "ServingBudget",
    "ServingLimits",
    "Slo",
    "StoredGate",
    "ToleranceBudget",
    "Verdict",
    "decide",
]

REASONS = (
    "equivalence_failed",
    "serving_failed",
    "outcome_failed",
    "value_negligible",
    "insufficient_evidence",
    "gates_passed",
    "override",
)

UNPRICED = "price every term of the value per task"
"""How an explanation begins what a decision still needs where the value is unknown."""

INVESTIGATE = (
    "configuration",
    "stopping",
    "structured decoding",
    "application assumptions",
)
"""Where to look when an exact and fast artifact makes tasks fail."""


@dataclass(frozen=True)
class StoredGate:
    """A gate's latest result for the artifact and policy at hand."""

    result: GateResult
    finished_at: datetime
    expires_at: datetime
    run_id: str


@dataclass(frozen=True)
class Override:
    """A person's decision; it stands until ``expires_at``. Enabling needs a ``gamma``."""

    action: str
    reason: str
    actor: str
    expires_at: datetime
    gamma: int | None = None

    def __post_init__(self) -> None:
        if self.action not in {ENABLE, BYPASS}:
            raise InputError(
                "is not an action",
                field="override.action",
                value=self.action,
                remedy=f"use {ENABLE} or {BYPASS}",
            )
        for name in ("reason", "actor"):
            if not getattr(self, name):
                raise InputError(
                    "is missing", field=f"override.{name}", remedy="say who decides, and why"
                )
        if self.action == ENABLE and (self.gamma is None or self.gamma < 1):
            raise InputError(
                "is missing", field="override.gamma", value=self.gamma, remedy="use 1 or more"
            )


@dataclass(frozen=True)
class Verdict:
    """What the evidence says now, before hysteresis; see ``Lease`` for the fields it shares.

    ``gates`` tells for each gate its outcome, whether it is mandatory, its state (``current``,
    ``expired``, ``missing``) and its run. ``still_needed`` lists what would settle an
    ``insufficient_evidence``, ``investigate`` where to look after ``outcome_failed``.
    """

    action: str
    gamma: int
    gamma_by_concurrency: Mapping[int, int]
    reason: str
    explanation: str
    gates: tuple[Mapping[str, Any], ...]
    envelope: Envelope
    evidence_expires_at: datetime | None
    value: ValueInterval | None = None
    approximate: bool = False
    still_needed: tuple[str, ...] = ()
    investigate: tuple[str, ...] = ()


def decide(
    policy: Policy,
    artifact_contract: str,
    results: Mapping[str, StoredGate],
    value: ValueInterval | None,
    now: datetime,
    *,
    override: Override | None = None,
    unpriced: Sequence[str] = (),
    refused: Sequence[str] = (),
) -> Verdict:
    """Apply the decision table to the results of one artifact under one policy.

    A FAIL decides, in the order equivalence, serving, outcome, whatever else is missing; it does
    not expire, because time does not repair an artifact. Any other result counts until it
    expires. An approximate artifact needs a policy that allows it, a measured deviation
    (``tolerance`` rows of the equivalence summary), and the outcome gate even where the policy does
    not demand it. ``unpriced`` says what an unknown value still needs, ``refused`` which gates the
    artifact cannot be put through: nobody is told to run those.

    Raises:
        InputError: an unknown contract, or a result filed under another gate's name.
    """
    if artifact_contract not in {"exact", "approximate"}:
        raise InputError(
            "is not a contract",
            field="acceptance.contract",
            value=artifact_contract,
            remedy="use exact or approximate",
        )
    for name, stored in results.items():
        if stored.result.gate != name:
            raise InputError(
                f"holds a result of {stored.result.gate}", field="results", value=name,
                remedy="file each result under its gate",
            )  # fmt: skip
    approximate = artifact_contract == "approximate"
    case = _Case(policy, approximate, results, value, now, tuple(unpriced), tuple(refused))
    if override is not None and now < override.expires_at:
        return _overridden(case, override)
    return _failed(case) or _missing(case) or _priced(case) or _enabled(case)


@dataclass(frozen=True)
class _Case:
    """One decision's inputs and what follows from them directly."""

    policy: Policy
    approximate: bool
    results: Mapping[str, StoredGate]
    value: ValueInterval | None
    now: datetime
    unpriced: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def mandatory(self) -> tuple[str, ...]:
        """Mandatory gates in table order; an approximation always owes the outcome gate."""
        demanded = {*self.policy.mandatory_gates, *(["outcome"] if self.approximate else [])}
        return tuple(gate for gate in GATES if gate in demanded)

    def expires(self, gate: str) -> datetime:
        """When the gate's result lapses: as stored, or sooner under a stricter policy."""
        stored = self.results[gate]
        ttl = timedelta(seconds=self.policy.evidence_ttl_s)
        return min(stored.expires_at, stored.finished_at + ttl)

    def state(self, gate: str) -> str:
        if gate not in self.results:
            return "missing"
        return "current" if self.now < self.expires(gate) else "expired"

    def outcome(self, gate: str) -> Outcome | None:
        return self.results[gate].result.outcome if gate in self.results else None

    def windows(self) -> dict[int, int] | None:
        """Gamma by concurrency that the serving gate confirmed; None where it names none."""
        if "serving" not in self.results:
            return None
        raw = self.results["serving"].result.summary.get("gamma_by_concurrency")
        try:
            windows = {int(c): int(g) for c, g in raw.items()} if raw else {}
        except (AttributeError, TypeError, ValueError):
            return None
        sound = windows and min(windows) >= 1 and min(windows.values()) >= 0
        return windows if sound else None

    def region(self) -> dict[str, float] | None:
        """Limits that the serving gate measured; None where they are not numbers."""
        raw = self.results["serving"].result.summary.get("envelope") or {}
        if not isinstance(raw, dict):
            return None
        known = {k: v for k, v in raw.items() if v is not None}
        return known if all(_is_number(v) for v in known.values()) else None

    def table(self) -> tuple[Mapping[str, Any], ...]:
        rows = []
        for gate in GATES:
            stored = self.results.get(gate)
            rows.append(
                {
                    "gate": gate,
                    "outcome": None if stored is None else str(stored.result.outcome),
                    "mandatory": gate in self.mandatory,
                    "state": self.state(gate),
                    "run_id": None if stored is None else stored.run_id,
                    "finished_at": None if stored is None else stored.finished_at.isoformat(),
                    "expires_at": None if stored is None else self.expires(gate).isoformat(),
                }
            )
        return tuple(rows)

    def bypass(self, reason: str, explanation: str, **more: tuple[str, ...]) -> Verdict:
        return Verdict(
            action=BYPASS,
            gamma=0,
            gamma_by_concurrency={},
            reason=reason,
            explanation=explanation,
            gates=self.table(),
            envelope=_envelope(self, {}),
            evidence_expires_at=None,
            value=self.value,
            approximate=self.approximate,
            **more,
        )


def _failed(case: _Case) -> Verdict | None:
    """The first row of the table with a FAIL."""
    if case.outcome("equivalence") is Outcome.FAIL:
        return case.bypass(
            "equivalence_failed",
            "Speculative decoding did not preserve the target's output, so the target decodes alone.",
        )
    if case.approximate and not case.policy.allow_approximate:
        return case.bypass(
            "equivalence_failed",
            f"The artifact is approximate, and policy {case.policy.name} demands exact decoding.",
        )
    windows = case.windows()
    none_passes = (
        case.outcome("serving") is Outcome.PASS
        and windows is not None
        and not any(gamma > 0 for gamma in windows.values())
    )
    if case.outcome("serving") is Outcome.FAIL or none_passes:
        return case.bypass(
            "serving_failed", "No load region showed a gain within the policy's serving limits."
        )
    if case.outcome("outcome") is Outcome.FAIL:
        return case.bypass(
            "outcome_failed",
            f"Tasks succeed less often or cost more per success; look at {', '.join(INVESTIGATE)}.",
            investigate=INVESTIGATE,
        )
    return None


def _missing(case: _Case) -> Verdict | None:
    """Whatever keeps the mandatory gates from being a current PASS."""
    needed = []
    for gate in case.mandatory:
        state, outcome = case.state(gate), case.outcome(gate)
        if state == "missing" and gate in case.refused:
            needed.append(
                f"the {gate} gate, which cannot be measured on servers that already run: register "
                "the pair as files"
            )
        elif state == "missing":
            needed.append(f"run the {gate} gate")
        elif state == "expired":
            needed.append(f"run the {gate} gate again: its evidence has expired")
        elif outcome is not Outcome.PASS:
            detail = case.results[gate].result.still_needed or f"run the {gate} gate again"
            needed.append(f"{gate} is {outcome}: {detail}")
    if case.approximate and case.outcome("equivalence") is Outcome.PASS and not _deviation(case):
        needed.append("equivalence must state the measured deviation of this approximate artifact")
    if case.outcome("serving") is Outcome.PASS and (
        case.windows() is None or case.region() is None
    ):
        needed.append(
            UNSTATED_WINDOW
            if windows_unstated(case.results["serving"].result.summary)
            else "serving must state gamma and limits of each load region that passed"
        )
    if not needed:
        return None
    return _insufficient(case, needed)


def _priced(case: _Case) -> Verdict | None:
    """Compare the value interval with the policy's minimum, where it has one."""
    minimum = case.policy.minimum_value
    if minimum is None:
        return None
    shown = f"{in_full(minimum.per_task)} {minimum.currency}"
    if case.value is None:
        return _insufficient(case, [f"{UNPRICED} (minimum {shown})", *case.unpriced])
    if case.value.currency != minimum.currency:
        return _insufficient(
            case, [f"price the task in {minimum.currency}; it is in {case.value.currency}"]
        )
    if case.value.high < minimum.per_task:
        return case.bypass(
            "value_negligible",
            _too_little(case.value.high, minimum),
        )
    if not case.value.low > minimum.per_task:
        return _insufficient(case, [_straddles(case.value, minimum)])
    return None


def _straddles(value: ValueInterval, minimum: MinimumValue) -> str:
    """The value and its interval beside the minimum: two digits, and what tells them from it."""
    least = minimum.per_task
    middle, low, high = (compared(end, least, 2)[0] for end in (value.value, value.low, value.high))
    return (
        f"narrow the value interval: {middle} {minimum.currency} a task "
        f"[{low}, {high}] straddles the minimum of {in_full(least)} {minimum.currency}"
    )


def _too_little(high: float, minimum: MinimumValue) -> str:
    """The high end of the value beside the minimum, in words that match its sign."""
    much, least = compared(high, minimum.per_task)
    shown = f"{least} {minimum.currency}"
    if high < 0:
        return (
            f"At least {in_full(-high)} {minimum.currency} a task is lost, "
            f"and the minimum to be gained is {shown}."
        )
    gained = f"At most {much} {minimum.currency} a task" if high else "At most nothing"
    return f"{gained} is gained, less than the minimum of {shown}."


def _enabled(case: _Case) -> Verdict:
    """Every gate passed and the value suffices."""
    windows = case.windows() or {}
    passing = {c: g for c, g in windows.items() if g > 0}
    label = "approximate" if case.approximate else "exact"
    return Verdict(
        action=ENABLE,
        gamma=min(passing.values()),
        gamma_by_concurrency=dict(sorted(windows.items())),
        reason="gates_passed",
        explanation=f"Every mandatory gate passed for this {label} artifact, so requests inside "
        "the envelope decode speculatively.",
        gates=case.table(),
        envelope=_envelope(case, passing),
        evidence_expires_at=min(case.expires(gate) for gate in case.mandatory),
        value=case.value,
        approximate=case.approximate,
    )


def _overridden(case: _Case, override: Override) -> Verdict:
    sentence = (
        f"{override.actor} set {override.action} until {override.expires_at.isoformat()}: "
        f"{override.reason}"
    )
    if override.action == BYPASS:
        held = case.bypass("override", sentence)
        return replace(held, evidence_expires_at=override.expires_at)
    return Verdict(
        action=ENABLE,
        gamma=override.gamma or 0,
        gamma_by_concurrency={},
        reason="override",
        explanation=sentence,
        gates=case.table(),
        envelope=_envelope(case, {}),
        evidence_expires_at=override.expires_at,
        value=case.value,
        approximate=case.approximate,
    )


def _insufficient(case: _Case, needed: list[str]) -> Verdict:
    return case.bypass(
        "insufficient_evidence",
        f"The evidence does not yet support enabling; still needed: {'; '.join(needed)}.",
        still_needed=tuple(needed),
    )


def _deviation(case: _Case) -> bool:
    """Whether the equivalence summary states a finite deviation for every declared feature."""
    rows = case.results["equivalence"].result.summary.get("tolerance")
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(row, dict) and _is_number(row.get("deviation")) for row in rows)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _envelope(case: _Case, passing: Mapping[int, int]) -> Envelope:
    """The serving gate's region, narrowed by the policy's request-time rules."""
    rules = case.policy.bypass
    measured: Mapping[str, Any] = (case.region() or {}) if passing else {}
    return Envelope(
        max_concurrency=_least_of(measured.get("max_concurrency"), max(passing, default=None)),
        max_context_tokens=measured.get("max_context_tokens"),
        min_remaining_tokens=_most_of(
            measured.get("min_remaining_tokens"), rules.min_remaining_tokens
        ),
        min_acceptance=_most_of(measured.get("min_acceptance"), rules.min_acceptance),
        max_memory_utilisation=_least_of(
            measured.get("max_memory_utilisation"), rules.max_memory_utilisation
        ),
        max_draft_queue=rules.max_draft_queue,
    )


def _least_of(*limits: Any) -> Any:  # noqa: ANN401 - int or float, as the limit is
    return min((x for x in limits if x is not None), default=None)


def _most_of(*limits: Any) -> Any:  # noqa: ANN401 - as _least_of
    return max((x for x in limits if x is not None), default=None)
