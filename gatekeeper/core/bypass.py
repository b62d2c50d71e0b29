"""Request-time rules: may this one request decode speculatively under the lease at hand?

Imported by clients on the request path, so it loads neither numpy nor pandas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gatekeeper.core.arms import BASELINE, CANDIDATE, HOLDOUT
from gatekeeper.core.documents import read
from gatekeeper.core.lease import BYPASS, ENABLE, NO_KEY, Envelope, Lease, gamma_at

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BYPASS",
    "ENABLE",
    "RULES",
    "Envelope",
    "Lease",
    "RequestContext",
    "RequestDecision",
    "decide_request",
    "gamma_at",
]

RULES = (
    "lease_lapsed",
    "version_mismatch",
    NO_KEY,
    HOLDOUT,
    "ramp",
    "outside_envelope",
    "memory_pressure",
    "draft_overloaded",
    "few_remaining_tokens",
    "low_acceptance",
)
"""Reasons of a request-time bypass, in the order in which they are looked at."""


@dataclass(frozen=True)
class RequestContext:
    """What the caller knows of the request and its engine now; None is not known.

    ``concurrency`` counts active requests with this one, ``context_tokens`` prompt and output so
    far, ``acceptance`` the recent acceptance rate of the route, ``draft_queue`` requests waiting
    for the drafter, ``artifact`` the digest of what is running. ``targeting_key`` is what a rollout
    goes by, such as a session or a user: the same key is always in the same arm.
    """

    concurrency: int | None = None
    context_tokens: int | None = None
    remaining_tokens: int | None = None
    acceptance: float | None = None
    memory_utilisation: float | None = None
    draft_queue: int | None = None
    artifact: str | None = None
    targeting_key: str | None = None

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, field: str = "context") -> RequestContext:
        """Read a request body.

        Raises:
            UnknownKey: a key no rule reads.
            InputError: a value of the wrong type.
        """
        return read(cls, dict(document), field=field)


@dataclass(frozen=True)
class RequestDecision:
    """The answer for one request. ``gamma`` is 0 for a bypass.

    ``reason`` is one of ``RULES``, or the lease's own reason. ``unchecked`` names the facts that
    a limit of the envelope asks for and the caller did not know. ``arm`` is the targeting key's in
    the route's rollout, whatever the other rules say; None without rollout, key or lease.
    """

    action: str
    gamma: int
    reason: str
    explanation: str
    unchecked: tuple[str, ...] = ()
    arm: str | None = None


def decide_request(
    lease: Lease | None, context: RequestContext, *, age_s: float = 0.0
) -> RequestDecision:
    """Apply the request-time rules to a lease of ``age_s`` seconds since its receipt.

    No lease, or one past both ``ttl_s`` and ``max_stale_s``, is a bypass. A fact that the caller
    does not know cannot trigger its rule; it is listed in ``unchecked``, and without a known
    concurrency the window is the one that is safe at every load of the envelope.
    """
    if lease is None:
        return _bypass("lease_lapsed", "No decision is known, so the target decodes alone.")
    # written so that an age of NaN lapses too
    if not age_s <= max(lease.ttl_s, lease.max_stale_s):
        return _bypass(
            "lease_lapsed", f"The decision is {age_s:.0f} s old and could not be renewed."
        )
    arm = None
    if lease.rollout is not None and context.targeting_key:
        arm = lease.rollout.arm(context.targeting_key)
    decision = _decided(lease, context, arm)
    return decision if arm is None else replace(decision, arm=arm)


def _decided(lease: Lease, context: RequestContext, arm: str | None) -> RequestDecision:
    refusal = _unusable(lease, context) or _not_in(lease, arm)
    if refusal is not None:
        return refusal
    unchecked = ["artifact"] if context.artifact is None else []
    for fact, limit, most, reason in lease.envelope.limits:
        value = getattr(context, fact)
        if value is None:
            unchecked.append(fact)
        # written so that NaN is outside, on either side
        elif not (value <= limit if most else value >= limit):
            return _bypass(reason, f"{fact} is {value:g}, the limit is {limit:g}.")
    gamma = _gamma(lease, context.concurrency)
    if gamma < 1:
        return _bypass("outside_envelope", "No window was shown to pass at this concurrency.")
    return RequestDecision(ENABLE, gamma, lease.reason, lease.explanation, tuple(unchecked))


def _unusable(lease: Lease, context: RequestContext) -> RequestDecision | None:
    if lease.action != ENABLE:
        return _bypass(lease.reason, lease.explanation)
    if context.artifact is not None and context.artifact != lease.artifact:
        return _bypass(
            "version_mismatch",
            f"Running is {context.artifact[:12]}, but {str(lease.artifact)[:12]} was gated.",
        )
    return None


def _not_in(lease: Lease, arm: str | None) -> RequestDecision | None:
    """Whom the rollout leaves out: a key of another arm, and whoever names none."""
    if not lease.partial or arm == CANDIDATE:
        return None
    if arm == HOLDOUT:
        return _bypass(HOLDOUT, "This targeting key is held out, so the target decodes alone.")
    if arm == BASELINE:
        return _bypass("ramp", "The ramp has not reached this targeting key yet.")
    return _bypass(NO_KEY, "The rollout goes by targeting key, and the request names none.")


def _gamma(lease: Lease, concurrency: int | None) -> int:
    if concurrency is None or not lease.gamma_by_concurrency:
        return lease.gamma
    return gamma_at(lease.gamma_by_concurrency, concurrency)


def _bypass(reason: str, explanation: str) -> RequestDecision:
    return RequestDecision(BYPASS, 0, reason, explanation)
