"""Outcomes of gates and their worst-of order."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gatekeeper.core.claims import Claim
from gatekeeper.core.documents import mapping, plain, refuse_unknown
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["GATES", "GateResult", "Outcome", "Part", "from_json", "to_json", "worst"]

GATES = ("equivalence", "serving", "outcome")
"""The three rollout gates, in the order in which a decision reads them."""


class Outcome(StrEnum):
    """What a check concluded; PASS < INCONCLUSIVE < ERROR < FAIL, CANCELLED stands apart.

    "No evidence" is INCONCLUSIVE, never PASS.
    """

    PASS = "PASS"  # noqa: S105 - an outcome, not a password
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"
    FAIL = "FAIL"
    CANCELLED = "CANCELLED"


_RANK = {Outcome.PASS: 0, Outcome.INCONCLUSIVE: 1, Outcome.ERROR: 2, Outcome.FAIL: 3}


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst outcome; nothing at all is INCONCLUSIVE.

    A CANCELLED part says nothing about the artifact, so it only prevents PASS: the result is
    the worst of the others when that is worse than PASS, else CANCELLED.
    """
    seen = list(outcomes)
    ranked = [o for o in seen if o is not Outcome.CANCELLED]
    if not seen:
        return Outcome.INCONCLUSIVE
    if not ranked:
        return Outcome.CANCELLED
    top = max(ranked, key=_RANK.__getitem__)
    return Outcome.CANCELLED if top is Outcome.PASS and len(ranked) < len(seen) else top


@dataclass(frozen=True)
class Part:
    """One mandatory or informative part of a gate.

    ``detail`` is one sentence for people; ``figures`` are JSON-able numbers by name.
    """

    name: str
    outcome: Outcome
    detail: str
    mandatory: bool = True
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GateResult:
    """The verdict of one gate: the worst of its mandatory parts unless the gate says otherwise.

    ``summary`` is JSON-able and gate-specific (for serving: ``regions``, ``gamma_by_concurrency``,
    ``envelope``, ``speedup``); ``claims`` name, for every figure the summary prints, the equation
    and the evidence table that reproduce it; ``still_needed`` says what would turn INCONCLUSIVE
    into a verdict.
    """

    gate: str
    outcome: Outcome
    parts: tuple[Part, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    still_needed: str | None = None

    def __post_init__(self) -> None:
        if self.gate not in GATES:
            raise InputError(
                "is not a gate", field="gate", value=self.gate, remedy=f"use one of {GATES}"
            )


def to_json(result: GateResult) -> dict[str, Any]:
    """JSON-able form of a result; ``from_json`` reads it back."""
    return {
        "gate": result.gate,
        "outcome": str(result.outcome),
        "parts": [{**plain(part), "outcome": str(part.outcome)} for part in result.parts],
        "summary": plain(dict(result.summary)),
        "claims": [claim.to_dict() for claim in result.claims],
        "still_needed": result.still_needed,
    }


def from_json(document: Mapping[str, Any]) -> GateResult:
    """Read a result that a worker sent.

    Raises:
        UnknownKey: a key that is no field of a result or part.
        InputError: a field is missing, or a gate, outcome or claim is not one.
    """
    known = _fields_of(GateResult, document, "result")
    parts = []
    for index, raw in enumerate(known["parts"]):
        at = f"result.parts[{index}]"
        part = _fields_of(Part, mapping(raw, field=at), at)
        parts.append(Part(**{**part, "outcome": _outcome(part["outcome"], f"{at}.outcome")}))
    return GateResult(
        gate=known["gate"],
        outcome=_outcome(known["outcome"], "result.outcome"),
        parts=tuple(parts),
        summary=known.get("summary", {}),
        claims=tuple(Claim.from_dict(claim) for claim in known.get("claims", ())),
        still_needed=known.get("still_needed"),
    )


def _fields_of(
    cls: type[GateResult | Part], document: Mapping[str, Any], at: str
) -> dict[str, Any]:
    refuse_unknown(document, [f.name for f in fields(cls)], field=at)
    needed = ("gate", "outcome", "parts") if cls is GateResult else ("name", "outcome", "detail")
    for name in needed:
        if name not in document:
            raise InputError("is missing", field=f"{at}.{name}", remedy="send the whole result")
    return dict(document)


def _outcome(value: object, at: str) -> Outcome:
    try:
        return Outcome(str(value))
    except ValueError:
        raise InputError(
            "is not an outcome", field=at, value=value, remedy=f"use one of {', '.join(Outcome)}"
        ) from None
