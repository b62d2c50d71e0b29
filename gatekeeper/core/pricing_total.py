"""The five terms and their sum for one case, and which load level a route is priced at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gatekeeper.core import pricing_terms as terms
from gatekeeper.core.pricing_latency import Latency, latency
from gatekeeper.core.pricing_ledger import ENDS, FLIPPED
from gatekeeper.core.value import ValueInterval, ValueTerms, incremental_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.pricing_ledger import PricingLedger
    from gatekeeper.core.pricing_level import Level
    from gatekeeper.core.pricing_terms import Case, Replicas

__all__ = ["COSTS", "GAINS", "Valued", "at_worst_level", "value_of"]

GAINS = ("latency_value", "avoided_target_capacity")
COSTS = ("draft_capacity_and_memory", "operational_cost", "expected_quality_loss")


@dataclass(frozen=True)
class Valued:
    """A case's terms and their sum; what is unknown is None."""

    latency: Latency
    needed: Replicas | None
    energy: float | None
    terms: ValueTerms
    total: ValueInterval | None


def value_of(case: Case) -> Valued:
    """Work out the terms of a case, each figure a claim of its ledger."""
    time = latency(case)
    needed, avoided = terms.avoided_target_capacity(case)
    draft = terms.draft_capacity_and_memory(case, needed)
    energy, operations = terms.operational(case)
    loss = terms.expected_quality_loss(case)
    found = ValueTerms(time.worth, avoided, draft, operations, loss)
    return Valued(time, needed, energy, found, _total(case.ledger, found))


def at_worst_level(case: Case, levels: Sequence[Level]) -> tuple[Case, list[dict[str, Any]]]:
    """Return the case at the level that prices the route, and the value at each where they differ.

    What load a task will meet is not known, so the worst level stands for all. Where a second is
    worth the same at each level, that is the one with the lowest bound of its speed-up, the first
    of ``levels``; else the one with the lowest bound of its value. A level without a price makes
    the value unknown and is itself the worst.
    """
    if not levels:
        return case, []
    cases = [replace(case, level=level) for level in levels]
    if all(one.time == cases[0].time for one in cases):
        return cases[0], []
    scratch = case.ledger.scratch()
    totals = [value_of(replace(one, ledger=scratch)).total for one in cases]
    by_load: list[dict[str, Any]] = [
        {
            "concurrency": level.concurrency,
            "kind": None if one.time is None else one.time[1].kind,
            "total": None if total is None else total.to_dict(),
        }
        for level, one, total in zip(levels, cases, totals, strict=True)
    ]
    by_load.sort(key=lambda row: int(row["concurrency"]))
    unpriced = [one for one in cases if one.time is None]
    if unpriced:
        return unpriced[0], by_load
    known = [(total.low, i) for i, total in enumerate(totals) if total is not None]
    return cases[min(known)[1] if len(known) == len(cases) else 0], by_load


def _total(book: PricingLedger, found: ValueTerms) -> ValueInterval | None:
    """The sum as the policy compares it, with a claim for each end."""
    total = incremental_value(found)
    if total is None:
        return None
    ends = {
        end: {name: getattr(getattr(found, name), end) for name in GAINS}
        | {name: getattr(getattr(found, name), FLIPPED[end]) for name in COSTS}
        for end in ENDS
    }
    return book.money("total", "value.per_task", total.currency, ends)
