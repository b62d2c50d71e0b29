"""One route's value per task, from its tasks' curves, its gates and its owner's prices.

The ceiling comes first (decoding in no time at all), then the five terms, then what would change
the answer. Every figure is a claim that recomputes from the curves; what is unknown says what it
still needs. Pure: the same inputs and seed give the same document.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.core import pricing_terms as terms
from gatekeeper.core import task_savings
from gatekeeper.core.economics import Economics
from gatekeeper.core.pricing_change import what_would_change
from gatekeeper.core.pricing_ledger import ENDS, FLIPPED, PricingLedger
from gatekeeper.core.pricing_level import (
    Level,
    draft_bytes,
    outcome_difference,
    serving_capacity,
    worst_level,
)
from gatekeeper.core.value import ValueInterval, ValueTerms, incremental_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from gatekeeper.core.claims import Claim
    from gatekeeper.core.policy_schema import MinimumValue

__all__ = ["REPLICATES", "SEED", "Priced", "PricingInputs", "price"]

REPLICATES = 2000
"""Bootstrap replicates: the Monte Carlo error of a 5 % quantile is then about 0.05 sd."""

SEED = 20240229
"""Fixed and written into every claim, so that an interval's ends recompute to the same digit."""


@dataclass(frozen=True)
class PricingInputs:
    """What a route is priced from.

    ``curves``: table of ``core.task_savings``, kept as the evidence ``evidence`` (sha256; None
    without tasks). ``serving`` and ``outcome``: (run, summary) of the governing results, None
    where there is none. ``economics`` None: no document of ``economics_name`` is stored.
    """

    route: str
    curves: pd.DataFrame
    evidence: str | None
    serving: tuple[str, Mapping[str, Any]] | None
    outcome: tuple[str, Mapping[str, Any]] | None
    economics_name: str
    economics: Economics | None
    minimum: MinimumValue | None


@dataclass(frozen=True)
class Priced:
    """The pricing document, the claims of its figures and the value, None while unknown."""

    document: dict[str, Any]
    claims: tuple[Claim, ...]
    value: ValueInterval | None


def price(inputs: PricingInputs) -> Priced:
    """Price a route."""
    book = PricingLedger(inputs.route, inputs.curves, inputs.evidence)
    prices = inputs.economics
    if prices is None:
        book.need(f"economics named {inputs.economics_name} (gatekeeper policy apply)")
        # every price unknown: seconds are shown all the same
        prices = Economics(inputs.economics_name, "", "unknown")
    counts = _counts(book, inputs)
    top = book.add("ceiling.saved_s", "value.ceiling", "s per task")
    level = _level(book, inputs)
    saved_s = _saved(book, level)
    case = terms.Case(
        ledger=book,
        economics=prices,
        level=level,
        capacity=None if level is None else serving_capacity(_summary(inputs.serving)),
        draft_bytes=draft_bytes(_summary(inputs.serving)),
        outcome=None if inputs.outcome is None else outcome_difference(inputs.outcome[1]),
    )
    first_token_s, worth = terms.latency(case, saved_s)
    needed, avoided = terms.avoided_target_capacity(case)
    draft = terms.draft_capacity_and_memory(case, needed)
    energy, operations = terms.operational(case)
    loss = terms.expected_quality_loss(case)
    found = ValueTerms(worth, avoided, draft, operations, loss)
    total = _total(book, found)
    top_money = None
    if top is not None and prices.value_of_second is not None:
        unit = f"{prices.currency} per task"
        top_money = book.add(
            "ceiling", "value.latency", unit, saved_s=top, value_per_s=prices.value_of_second
        )
    minimum = inputs.minimum
    known = inputs.economics is not None
    document: dict[str, Any] = {
        "route": inputs.route,
        "economics": {
            "name": inputs.economics_name,
            "digest": prices.digest if known else None,
            "document": prices.to_dict() if known else None,
        },
        "currency": prices.currency if known else None,
        "minimum": None if minimum is None else asdict(minimum),
        **counts,
        "ceiling": {"saved_s": top, "per_task": top_money},
        "speedup": None if level is None else _speedup(book, level),
        "saved_s": saved_s,
        "first_token_s": first_token_s,
        "terms": {name: _shown(getattr(found, name)) for name in _TERMS},
        "total": None if total is None else total.to_dict(),
        "unknown": list(found.unknown),
        "energy": {
            "declared": None if prices.energy is None else prices.energy.declared,
            "per_task": energy,
        },
        "replicas": None
        if needed is None
        else {
            "load_rps": needed.load_rps,
            "baseline": needed.baseline,
            "candidate": dict(needed.candidate),
        },
        "evidence": inputs.evidence,
        "method": {"replicates": REPLICATES, "seed": SEED},
    }
    document["what_would_change"] = what_would_change(case, found, total, minimum)
    document["still_needed"] = list(book.needs)
    return Priced(document, tuple(book.claims), total)


_TERMS = (
    "latency_value",
    "avoided_target_capacity",
    "draft_capacity_and_memory",
    "operational_cost",
    "expected_quality_loss",
)


def _counts(book: PricingLedger, inputs: PricingInputs) -> dict[str, Any]:
    """How many tasks the figures rest on, and how many were left out and why."""
    tasks = book.add("tasks", "value.tasks", "tasks") or 0.0
    sessions = book.add("sessions", "value.sessions", "sessions") or 0.0
    if sessions < task_savings.MIN_SESSIONS:
        book.need(
            f"complete, reconciled tasks of grade A to C from {task_savings.MIN_SESSIONS} sessions "
            f"of this route; there are {sessions:.0f}"
        )
    left_out = task_savings.excluded(inputs.curves) if len(inputs.curves) else {}
    return {"tasks": int(tasks), "sessions": int(sessions), "excluded": left_out}


def _summary(gate: tuple[str, Mapping[str, Any]] | None) -> Mapping[str, Any]:
    return {} if gate is None else gate[1]


def _level(book: PricingLedger, inputs: PricingInputs) -> Level | None:
    level = None if inputs.serving is None else worst_level(*inputs.serving)
    if level is None:
        book.need("a serving gate with a level that passed, with the spread of its speed-up")
    return level


def _saved(book: PricingLedger, level: Level | None) -> dict[str, float] | None:
    """Seconds saved by decoding; the three ends of one bootstrap rather than of three."""
    if level is None or not len(book.curves):
        return None
    drawn: dict[str, Any] = {
        "log_ratio": level.log_ratio,
        "sd": level.sd,
        "pairs": level.pairs,
        "confidence": level.confidence,
        "replicates": REPLICATES,
    }
    rng = np.random.default_rng(SEED)
    found = task_savings.saved_seconds(book.curves, **drawn, rng=rng)
    if found is None:
        return None
    drawn["seed"] = SEED
    return {
        end: book.note(
            "saved_s" if end == "value" else f"saved_s.{end}",
            "value.saved",
            "s per task",
            getattr(found, end),
            **drawn,
            end=end,
        )
        for end in ENDS
    }


def _speedup(book: PricingLedger, level: Level) -> dict[str, Any]:
    """The serving gate's figures, repeated here with what identifies them."""
    given = {"value": level.ratio, "low": level.low, "high": level.high}
    ends = {end: {"value": value, "run": level.run} for end, value in given.items()}
    book.ends("speedup", "value.given", "ratio", ends)
    return {
        "ratio": level.ratio,
        "low": level.low,
        "high": level.high,
        "concurrency": level.concurrency,
        "gamma": level.gamma,
        "run": level.run,
    }


def _total(book: PricingLedger, found: ValueTerms) -> ValueInterval | None:
    """The sum as the policy compares it, with a claim for each end."""
    total = incremental_value(found)
    if total is None:
        return None
    gains, costs = _TERMS[:2], _TERMS[2:]
    ends = {
        end: {name: getattr(getattr(found, name), end) for name in gains}
        | {name: getattr(getattr(found, name), FLIPPED[end]) for name in costs}
        for end in ENDS
    }
    return book.money("total", "value.per_task", total.currency, ends)


def _shown(term: ValueInterval | None) -> dict[str, float] | None:
    return None if term is None else {end: getattr(term, end) for end in ENDS}
