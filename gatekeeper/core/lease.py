"""A decision as clients hold it: a lease that lapses. Light enough for the request path."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from gatekeeper.core.arms import Split
from gatekeeper.core.value import ValueInterval

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BYPASS",
    "ENABLE",
    "NO_KEY",
    "Envelope",
    "Lease",
    "Limit",
    "gamma_at",
    "in_force",
]

ENABLE = "enable"
BYPASS = "bypass"

NO_KEY = "no_targeting_key"
"""Reason of the bypass of a request that names no targeting key while not every key is in."""

_FOR_KEYS = ("action", "variant", "gamma", "gamma_by_concurrency", "reason", "explanation")
"""What a partial rollout says of the keys that are in, and otherwise of everybody."""


@dataclass(frozen=True)
class Envelope:
    """The region in which an enable was shown to hold; None is no limit.

    ``max_draft_queue`` carries the policy's limit of an overloaded draft route.
    """

    max_concurrency: int | None = None
    max_context_tokens: int | None = None
    min_remaining_tokens: int | None = None
    min_acceptance: float | None = None
    max_memory_utilisation: float | None = None
    max_draft_queue: int | None = None

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """Limits in force, in the order in which they are looked at; found once for a lease."""
        most = (
            ("concurrency", self.max_concurrency, "outside_envelope"),
            ("context_tokens", self.max_context_tokens, "outside_envelope"),
            ("memory_utilisation", self.max_memory_utilisation, "memory_pressure"),
            ("draft_queue", self.max_draft_queue, "draft_overloaded"),
        )
        least = (
            ("remaining_tokens", self.min_remaining_tokens, "few_remaining_tokens"),
            ("acceptance", self.min_acceptance, "low_acceptance"),
        )
        return tuple(
            Limit(fact, value, highest, reason)
            for highest, limits in ((True, most), (False, least))
            for fact, value, reason in limits
            if value is not None
        )


class Limit(NamedTuple):
    """What a fact of a request may be: ``most`` or else at least ``value``; else ``reason``."""

    fact: str
    value: float
    most: bool
    reason: str


@dataclass(frozen=True)
class Lease:
    """One decision for one route.

    ``gamma`` is safe at every concurrency of the envelope, ``gamma_by_concurrency`` the choice at
    each measured level; both are 0 and empty for a bypass. ``version`` is (epoch, counter) and
    orders decisions. Clients count ``ttl_s`` and ``max_stale_s`` from receipt on their own clock:
    fresh for the former, usable for the latter when it cannot be renewed, then bypass. ``rollout`` says
    which targeting keys an enable is for; None is everybody.
    """

    route: str
    action: str
    variant: str
    gamma: int
    gamma_by_concurrency: Mapping[int, int]
    artifact: str | None
    reason: str
    explanation: str
    gates: tuple[Mapping[str, Any], ...]
    value: ValueInterval | None
    envelope: Envelope
    version: tuple[int, int]
    decided_at: datetime
    evidence_expires_at: datetime | None
    ttl_s: float
    max_stale_s: float
    rollout: Split | None = None

    @property
    def partial(self) -> bool:
        """Whether the enable is for some targeting keys only."""
        return self.action == ENABLE and self.rollout is not None and not self.rollout.whole

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form: times in ISO 8601, concurrencies as strings, ``version`` as a list."""
        expires = self.evidence_expires_at
        return {
            "route": self.route,
            "action": self.action,
            "variant": self.variant,
            "gamma": self.gamma,
            "gamma_by_concurrency": {str(c): g for c, g in self.gamma_by_concurrency.items()},
            "artifact": self.artifact,
            "reason": self.reason,
            "explanation": self.explanation,
            "gates": [dict(gate) for gate in self.gates],
            "value": None if self.value is None else self.value.to_dict(),
            "envelope": asdict(self.envelope),
            "version": list(self.version),
            "decided_at": self.decided_at.isoformat(),
            "evidence_expires_at": None if expires is None else expires.isoformat(),
            "ttl_s": self.ttl_s,
            "max_stale_s": self.max_stale_s,
            "rollout": None if self.rollout is None else self.rollout.to_dict(),
        }

    def to_wire(self) -> dict[str, Any]:
        """The form that callers get: what holds without a targeting key stands at its top.

        Whoever knows nothing of rollouts, or has no key, reads a bypass there while an enable is for
        some keys only. What holds for these keys is in ``rollout.enable``, and ``from_dict`` reads it.
        """
        document = self.to_dict()
        if not self.partial:
            return document
        return {
            **document,
            "action": BYPASS,
            "variant": "ordinary",
            "gamma": 0,
            "gamma_by_concurrency": {},
            "reason": NO_KEY,
            "explanation": f"{self.explanation} A request without a targeting key is in no arm, so "
            "the target decodes it alone.",
            "rollout": {
                **document["rollout"],
                "enable": {name: document[name] for name in _FOR_KEYS},
            },
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Lease:
        """Read ``to_dict`` or ``to_wire`` back; fields that a newer server added are left out.

        Raises:
            KeyError: a field is missing.
            TypeError, ValueError: a time or number cannot be read, or can be none.
        """
        document = in_force(document)
        rollout = document.get("rollout")
        value, expires = document["value"], document["evidence_expires_at"]
        epoch, counter = document["version"]
        return cls(
            route=document["route"],
            action=document["action"],
            variant=document["variant"],
            gamma=int(document["gamma"]),
            gamma_by_concurrency={
                int(c): int(g) for c, g in document["gamma_by_concurrency"].items()
            },
            artifact=document["artifact"],
            reason=document["reason"],
            explanation=document["explanation"],
            gates=tuple(document["gates"]),
            value=None
            if value is None
            else ValueInterval(value["per_task"], value["low"], value["high"], value["currency"]),
            envelope=Envelope(
                **{
                    name: _limit(document["envelope"].get(name))
                    for name in Envelope.__dataclass_fields__
                }
            ),
            version=(int(epoch), int(counter)),
            decided_at=datetime.fromisoformat(document["decided_at"]),
            evidence_expires_at=None if expires is None else datetime.fromisoformat(expires),
            ttl_s=_seconds(document["ttl_s"]),
            max_stale_s=_seconds(document["max_stale_s"]),
            rollout=None if rollout is None else Split.from_dict(rollout),
        )


def in_force(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a lease on the wire as it holds for the targeting keys that are in.

    Raises:
        KeyError, TypeError: what it says of them is incomplete.
    """
    enable = (document.get("rollout") or {}).get("enable")
    if enable is None:
        return document
    return {**document, **{name: enable[name] for name in _FOR_KEYS}}


def _limit(value: Any) -> Any:  # noqa: ANN401 - a number, or what is refused
    """Return a limit that comparisons work with."""
    if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
        raise TypeError(f"{value!r} is not a limit")
    return value


def _seconds(value: Any) -> float:  # noqa: ANN401 - as in _limit
    """Return a time to live; one without end would make a lease that never lapses."""
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{value!r} is not a duration")
    return seconds


def gamma_at(gamma_by_concurrency: Mapping[int, int], concurrency: int) -> int:
    """Window at a concurrency, 0 where none was shown to pass.

    Between two measured levels both must have passed, and the shorter window is taken; outside
    the measured range nothing is known, so 0.
    """
    below = [level for level in gamma_by_concurrency if level <= concurrency]
    above = [level for level in gamma_by_concurrency if level >= concurrency]
    if not below or not above:
        return 0
    return min(gamma_by_concurrency[max(below)], gamma_by_concurrency[min(above)])
