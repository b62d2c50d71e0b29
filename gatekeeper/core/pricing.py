"""One route's value per task, from its tasks' curves, its gates and its owner's prices.

The ceiling comes first (decoding in no time at all), then the five terms, then what would change
the answer. Every figure is a claim that recomputes from the curves; what is unknown says what it
still needs. Pure: the same inputs and seed give the same document.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core import task_savings
from gatekeeper.core.economics import Economics
from gatekeeper.core.pricing_change import what_would_change
from gatekeeper.core.pricing_latency import ceiling_worth
from gatekeeper.core.pricing_ledger import ENDS, PricingLedger
from gatekeeper.core.pricing_level import (
    UNSTATED_WINDOW,
    draft_bytes,
    outcome_difference,
    passing_levels,
    serving_capacity,
    windows_unstated,
)
from gatekeeper.core.pricing_method import METHOD, REPLICATES, SEED
from gatekeeper.core.pricing_narrowing import narrowing
from gatekeeper.core.pricing_sensitivity import sensitivity
from gatekeeper.core.pricing_terms import Case
from gatekeeper.core.pricing_total import COSTS, GAINS, at_worst_level, value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from gatekeeper.core.claims import Claim
    from gatekeeper.core.policy_schema import MinimumValue
    from gatekeeper.core.pricing_latency import Latency
    from gatekeeper.core.pricing_level import Level
    from gatekeeper.core.value import ValueInterval

__all__ = ["Priced", "PricingInputs", "price"]


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
    summary = _summary(inputs.serving)
    levels = () if inputs.serving is None else passing_levels(*inputs.serving)
    if not levels:
        book.need(
            UNSTATED_WINDOW
            if windows_unstated(summary)
            else "a serving gate with a level that passed, with the spread of its speed-up"
        )
    case = Case(
        ledger=book,
        economics=prices,
        level=None,
        capacity=serving_capacity(summary) if levels else None,
        draft_bytes=draft_bytes(summary),
        outcome=None if inputs.outcome is None else outcome_difference(inputs.outcome[1]),
        replicates=REPLICATES,
        seed=SEED,
    )
    case, by_load = at_worst_level(case, levels)
    level = case.level
    found = value_of(case)
    terms, total, needed = found.terms, found.total, found.needed
    top_money = ceiling_worth(case, top)
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
        "time_value": _time_value(case, found.latency, by_load),
        "saved_s": found.latency.saved_s,
        "first_token_s": found.latency.first_token_s,
        "first_token_drawn": level is not None and level.log_ttft is not None,
        "terms": {name: _shown(getattr(terms, name)) for name in (*GAINS, *COSTS)},
        "total": None if total is None else total.to_dict(),
        "unknown": list(terms.unknown),
        "energy": {
            "declared": None if prices.energy is None else prices.energy.declared,
            "per_task": found.energy,
        },
        "replicas": None
        if needed is None
        else {
            "load_rps": needed.load_rps,
            "baseline": needed.baseline,
            "candidate": dict(needed.candidate),
        },
        "evidence": inputs.evidence,
        "method": dict(METHOD),
    }
    found_more = narrowing(case, total, minimum)
    document["narrowing"] = found_more
    document["what_would_change"] = what_would_change(case, terms, total, minimum, found_more)
    rivals = [other for other in levels if by_load and other is not level]
    document["sensitivity"] = sensitivity(case, total, minimum, rivals)
    document["still_needed"] = list(book.needs)
    return Priced(document, tuple(book.claims), total)


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


def _time_value(
    case: Case, latency: Latency, by_load: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What a second is priced by, and where; None there where nobody said."""
    where, rule = case.time or (None, None)
    shown: dict[str, Any] = {
        "kind": None if rule is None else rule.kind,
        "where": where,
        "concurrency": None if case.level is None else case.level.concurrency,
        "kept": latency.kept,
        "outside": None,
        "by_load": list(by_load),
    }
    if rule is not None and rule.abandonment is not None:
        fit = rule.abandonment.fit
        ends = {"shortest_s": fit.shortest_s, "longest_s": fit.longest_s}
        shown["outside"] = case.ledger.add("outside", "value.outside", "tasks", **ends)
    return shown


def _shown(term: ValueInterval | None) -> dict[str, float] | None:
    return None if term is None else {end: getattr(term, end) for end in ENDS}
