"""The claim ledger: each printed figure, the equation and the inputs that reproduce it.

A module of ``core`` registers its equations with ``@equation(name)`` when it is imported;
``gatekeeper.core.equations`` imports all of them, so verify through that module. This one imports
neither numpy nor pandas, because verdicts carry claims into the request-time client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, TypeVar

from gatekeeper.errors import EvidenceError, GatekeeperError, InputError, NotFound, UnknownKey

__all__ = [
    "EQUATIONS",
    "STATUSES",
    "Claim",
    "Equation",
    "LoadTable",
    "Verified",
    "equation",
    "essay_claims",
    "no_tables",
    "recompute",
    "verify",
]

STATUSES = ("illustrative", "measured", "estimated")
RELATIVE_TOLERANCE = 1e-9

LoadTable = Callable[[str, "str | None"], Any]
"""``load(table name, sha256 or None)`` returns the evidence, a DataFrame; it raises ``NotFound`` when that is
absent and ``EvidenceError`` when its bytes no longer have the digest."""

_F = TypeVar("_F", bound=Callable[..., Any])
_RESERVED = frozenset({"table", "evidence"})
_FIELDS = ("id", "equation", "inputs", "value", "unit", "status", "source")


@dataclass(frozen=True)
class Claim:
    """One figure. ``inputs`` are the equation's keyword arguments, JSON-able.

    For an equation over evidence they also hold ``table`` (its name within the gate run) and,
    once uploaded, ``evidence`` (its sha256). ``printed`` is the figure as a text prints it, where
    a text does: the recomputed value, rounded to as many digits, must print the same.
    """

    id: str
    equation: str
    inputs: Mapping[str, Any]
    value: float
    unit: str
    status: str
    source: str
    printed: str | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InputError(
                "is not a claim status",
                field=f"{self.id}.status",
                value=self.status,
                remedy=f"use one of {', '.join(STATUSES)}",
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``printed`` only where there is one."""
        document = {**asdict(self), "inputs": dict(self.inputs)}
        if self.printed is None:
            del document["printed"]
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Claim:
        """Read ``to_dict`` back.

        Raises:
            UnknownKey: a key is not a field of a claim.
            InputError: a field is missing.
        """
        for key in document:
            if key not in {*_FIELDS, "printed"}:
                raise UnknownKey(
                    "is not a field of a claim",
                    field=f"claim.{key}",
                    value=document[key],
                    remedy=f"use {', '.join(_FIELDS)} and printed",
                )
        for key in _FIELDS:
            if key not in document:
                raise InputError("is missing", field=f"claim.{key}", remedy="give every field")
        return cls(**{**document, "inputs": dict(document["inputs"])})


@dataclass(frozen=True)
class Equation:
    """A named function of core; ``table`` says that its first argument is an evidence table."""

    name: str
    function: Callable[..., Any]
    table: bool


@dataclass(frozen=True)
class Verified:
    """A claim beside its recomputation. ``reason`` says why it does not agree, None when it does.

    ``cause`` is one of ``input_changed``, ``value_changed``, ``evidence_changed``,
    ``evidence_missing``, ``not_computable``, or None.
    """

    claim: Claim
    recomputed: float | None
    agrees: bool
    cause: str | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The claim's own fields, then ``recomputed``, ``agrees``, ``cause``, ``reason``."""
        return {
            **self.claim.to_dict(),
            "recomputed": self.recomputed,
            "agrees": self.agrees,
            "cause": self.cause,
            "reason": self.reason,
        }


_REGISTRY: dict[str, Equation] = {}
EQUATIONS: Mapping[str, Equation] = _REGISTRY
"""Every registered equation by name; complete after importing ``gatekeeper.core.equations``."""


def equation(name: str, *, table: bool = False) -> Callable[[_F], _F]:
    """Register a function of core as the equation ``name``; it is returned unchanged.

    Raises:
        InputError: another function already has the name.
    """

    def register(function: _F) -> _F:
        known = _REGISTRY.get(name)
        if known is not None and known.function.__qualname__ != function.__qualname__:
            raise InputError(
                "is registered twice", field="equation", value=name, remedy="choose another name"
            )
        _REGISTRY[name] = Equation(name, function, table)
        return function

    return register


def no_tables(table: str, evidence: str | None) -> NoReturn:
    """Stand in for a ``LoadTable`` where no evidence is at hand.

    Raises:
        NotFound: always.
    """
    raise NotFound(
        "no evidence is at hand", field=table, value=evidence, remedy="verify where it is stored"
    )


def recompute(claim: Claim, load_table: LoadTable = no_tables) -> float:
    """Evaluate a claim's equation on its inputs.

    Raises:
        InputError: no such equation, inputs it does not take or cannot use, or no finite value.
        NotFound: the evidence is absent.
        EvidenceError: the evidence is not what was recorded.
    """
    known = EQUATIONS.get(claim.equation)
    if known is None:
        raise InputError(
            "is not a known equation",
            field=f"{claim.id}.equation",
            value=claim.equation,
            remedy="import gatekeeper.core.equations, or correct the name",
        )
    arguments: list[Any] = []
    scalars = dict(claim.inputs)
    if known.table:
        name = scalars.get("table")
        if not isinstance(name, str):
            raise InputError(
                "is missing", field=f"{claim.id}.inputs.table", remedy="name the evidence table"
            )
        arguments.append(load_table(name, scalars.get("evidence")))
        scalars = {key: value for key, value in scalars.items() if key not in _RESERVED}
    try:
        value = known.function(*arguments, **scalars)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise InputError(
            f"{claim.equation} cannot be computed: {error}",
            field=f"{claim.id}.inputs",
            value=dict(claim.inputs),
            remedy="restore the inputs the figure was computed from",
        ) from error
    if value is None or not math.isfinite(value):
        raise InputError(
            f"{claim.equation} has no finite value on these inputs",
            field=claim.id,
            value=value,
            remedy="run the gate again",
        )
    return float(value)


def verify(claims: Iterable[Claim], load_table: LoadTable = no_tables) -> list[Verified]:
    """Recompute every claim; a claim that cannot be recomputed does not agree.

    Agreement is exact up to a relative 1e-9: the same library on the same inputs. A claim of the
    essay's ledger must also have the inputs and the printed digits of the essay.
    """
    essay = {claim.id: claim for claim in essay_claims()}
    return [_verify_one(claim, essay.get(claim.id), load_table) for claim in claims]


def _verify_one(claim: Claim, original: Claim | None, load_table: LoadTable) -> Verified:
    tampered = original is not None and _changed(claim, original)
    recomputed, cause, why = None, "", ""
    try:
        recomputed = recompute(claim, load_table)
    except EvidenceError as error:
        cause, why = "evidence_changed", str(error)
    except NotFound as error:
        cause, why = "evidence_missing", str(error)
    except GatekeeperError as error:
        cause, why = "not_computable", str(error)
    if original is not None and tampered:
        cause, why = "input_changed", f"{_differences(claim, original)} differs from the essay's"
    if recomputed is None or cause:
        return Verified(claim, recomputed, agrees=False, cause=cause, reason=f"{claim.id}: {why}")
    if not math.isclose(recomputed, claim.value, rel_tol=RELATIVE_TOLERANCE, abs_tol=0.0):
        return Verified(
            claim,
            recomputed,
            agrees=False,
            cause="value_changed",
            reason=f"{claim.id}: recorded {claim.value!r}, but {claim.equation} of the recorded "
            f"inputs is {recomputed!r}; the value or an input was changed",
        )
    printed = claim.printed or (original.printed if original is not None else None)
    if printed is not None and _as_printed(recomputed, printed) != printed:
        return Verified(
            claim,
            recomputed,
            agrees=False,
            cause="value_changed",
            reason=f"{claim.id}: printed as {printed}, recomputed "
            f"{_as_printed(recomputed, printed)}",
        )
    return Verified(claim, recomputed, agrees=True)


def _changed(claim: Claim, original: Claim) -> bool:
    return claim.equation != original.equation or dict(claim.inputs) != dict(original.inputs)


def _differences(claim: Claim, original: Claim) -> str:
    names = {*claim.inputs, *original.inputs}
    changed = sorted(n for n in names if claim.inputs.get(n) != original.inputs.get(n))
    return f"input {', '.join(changed)}" if changed else "the equation"


def _as_printed(value: float, printed: str) -> str:
    """``value`` with as many decimals as ``printed`` shows."""
    return f"{value:.{len(printed.partition('.')[2])}f}"


def essay_claims() -> tuple[Claim, ...]:
    """Return the worked examples of "The Draft Is Allowed to Be Wrong", all illustrative.

    Values are the exact results on the essay's inputs; ``printed`` is what the essay prints.
    """
    high = {"ordinary_s": 0.022, "draft_s": 0.008, "verify_s": 0.018, "overhead_s": 0.002}
    low = {"ordinary_s": 0.022, "draft_s": 0.016, "verify_s": 0.028, "overhead_s": 0.003}
    task = {"queue": 600, "prefill": 400, "decode": 1200, "tool": 2000, "verification": 800}
    rows: tuple[tuple[str, str, dict[str, Any], float, str, str], ...] = (
        ("progress.high", "progress.expected", {"alpha": 0.8, "gamma": 4}, 3.3616,
         "tokens per round", "3.3616"),
        ("progress.low", "progress.expected", {"alpha": 0.35, "gamma": 4}, 1.53038125,
         "tokens per round", "1.5304"),
        ("ordinary.high", "progress.ordinary_time", {"progress": 3.3616, "step": 22}, 73.9552,
         "ms", "73.96"),
        ("ordinary.low", "progress.ordinary_time", {"progress": 1.5304, "step": 22}, 33.6688,
         "ms", "33.67"),
        ("speedup.high", "progress.speedup", {"progress": 3.3616, **high}, 2.6412571428571428,
         "ratio", "2.64"),
        ("speedup.low", "progress.speedup", {"progress": 1.5304, **low}, 0.7163574468085106,
         "ratio", "0.72"),
        ("marginal.fifth", "progress.marginal", {"alpha": 0.5, "position": 5}, 0.03125,
         "tokens per round", "0.03125"),
        ("task.after", "latency.task_time_after",
         {"segments": task, "segment": "decode", "speedup": 2}, 4400.0, "ms", "4400"),
        ("task.improvement", "latency.relative_saving", {"before": 5000, "after": 4400}, 0.12,
         "share", "0.12"),
    )  # fmt: skip
    return tuple(
        Claim(
            id=f"essay.{name}",
            equation=formula,
            inputs=inputs,
            value=value,
            unit=unit,
            status="illustrative",
            source="The Draft Is Allowed to Be Wrong",
            printed=printed,
        )
        for name, formula, inputs, value, unit, printed in rows
    )
