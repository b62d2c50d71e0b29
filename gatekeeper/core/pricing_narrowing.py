"""How much more evidence of which kind would lift the low end of a value above the policy's minimum.

Each kind is tried alone with `MORE` times as much of it: tasks like those seen, block pairs and
outcome pairs with the spread of those seen. An interval narrows with the square root of what it
rests on, so the low end as a function of the factor k is taken as limit − c / √k through these two
points; that gives k. It is an estimate: it holds while the estimates stay where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gatekeeper.core.documents import in_full
from gatekeeper.core.pricing_total import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.policy_schema import MinimumValue
    from gatekeeper.core.pricing_terms import Case
    from gatekeeper.core.value import ValueInterval

__all__ = ["KINDS", "MORE", "Kind", "narrowing", "sentence"]

MORE = 4
"""A factor whose square root is 2: the spread of that kind halves."""

_DRAWN_CELLS = 1_000_000
_FEWEST_REPLICATES = 200
"""As in ``pricing_sensitivity``: bounds of what is drawn anew."""

_MOST = 1000.0
"""A factor beyond it is said to be none: nobody waits for a thousand times as many tasks."""


@dataclass(frozen=True)
class Kind:
    """A kind of evidence as it is called, and what brings more of it."""

    name: str
    label: str
    how: str


KINDS = (
    Kind("tasks", "tasks", "send more traces of this route"),
    Kind(
        "block_pairs",
        "block pairs of the serving gate",
        "raise serving.confirm_blocks in the policy",
    ),
    Kind("outcome_pairs", "outcome pairs", "raise outcome.pairs in the policy"),
)


def narrowing(
    case: Case, total: ValueInterval | None, minimum: MinimumValue | None
) -> dict[str, Any] | None:
    """What would lift the low end above the minimum (0 where there is none).

    None where the value is unknown or in another currency, or where its interval does not straddle
    the minimum. ``gains`` is how far the low end rises with `MORE` times the evidence of a kind,
    ``dominant`` the kind that lifts it most (None where none does). ``kind`` is the one that the
    least factor alone suffices of, or ``all`` where it takes all three together; ``factor`` how many
    times as much of it, ``now`` and ``needed`` counts of it where they are known. ``factor`` None:
    no amount that anybody would gather is known to suffice.
    """
    if total is None or (minimum is not None and minimum.currency != total.currency):
        return None
    least = 0.0 if minimum is None else minimum.per_task
    if total.low > least or total.high < least:
        return None
    found: dict[str, Any] = {
        "gains": {},
        "dominant": None,
        "kind": None,
        "factor": None,
        "now": None,
        "needed": None,
    }
    if total.value <= least:
        return found
    base = _affordable(case)
    here = _low(base)
    lows = {kind.name: _low(_more(base, kind.name)) for kind in KINDS}
    found["gains"] = {name: max(low - here, 0.0) for name, low in lows.items()}
    dominant = max(found["gains"], key=lambda name: float(found["gains"][name]))
    if found["gains"][dominant] > 0:
        found["dominant"] = dominant
    factors = {name: _factor(here, low, least) for name, low in lows.items()}
    every = base
    for kind in KINDS:
        every = _more(every, kind.name)
    known = {name: factor for name, factor in factors.items() if factor is not None}
    which = min(known, key=lambda name: known[name]) if known else "all"
    factor = known.get(which) or _factor(here, _low(every), least)
    if factor is not None and factor <= _MOST:
        now = _counts(case).get(which)
        needed = None if now is None else math.ceil(now * factor)
        found |= {"kind": which, "factor": factor, "now": now, "needed": needed}
    return found


def sentence(found: Mapping[str, Any] | None, total: ValueInterval, least: str) -> str | None:
    """Say it; ``least`` is the minimum with its currency."""
    if found is None:
        return None
    if not found["gains"]:
        return (
            f"What would narrow the interval to one side of {least} is not known: the estimate "
            "itself does not exceed it, so more evidence alone need not lift the low end above."
        )
    labels = {kind.name: kind for kind in KINDS}
    main = labels.get(found["dominant"] or "")
    why = "" if main is None else f" More {main.label} narrow the interval most."
    if found["factor"] is None:
        return f"How much more evidence lifts the low end above {least} is not known.{why}"
    times = f"{max(found['factor'], 1.1):.2g}"
    if found["kind"] == "all":
        names = "tasks, block pairs and outcome pairs"
        what = f"about {times} times as many of all three: {names}"
    else:
        kind = labels[found["kind"]]
        much = f"{times} times as many {kind.label}"
        if found["needed"] is not None:
            much = f"{found['needed']} {kind.label} instead of {found['now']}"
        what = f"about {much} ({kind.how})"
    return (
        f"To lift the low end above {least}: {what}, if the estimate of {in_full(total.value, 2)} "
        f"{total.currency} stays (by the square-root law).{why}"
    )


def _factor(here: float, there: float, least: float) -> float | None:
    """Factor k at which limit − c / √k meets ``least``; None where the limit stays below it."""
    half = math.sqrt(MORE)
    rise = (there - here) * half / (half - 1)  # from the present to the limit
    if not rise > 0 or here + rise <= least:
        return None
    return (rise / (here + rise - least)) ** 2


def _affordable(case: Case) -> Case:
    """The case on a ledger that keeps nothing, with fewer replicates where tasks are many."""
    tasks = case.ledger.tasks
    count = 1 if tasks is None else MORE * len(tasks.wall)
    fewer = max(_FEWEST_REPLICATES, min(case.replicates, _DRAWN_CELLS // count))
    return replace(case, ledger=case.ledger.scratch(), replicates=fewer)


def _more(case: Case, kind: str) -> Case:
    """A case that rests on `MORE` times the evidence of a kind, its estimates as they are."""
    if kind == "tasks":
        return replace(case, ledger=case.ledger.scratch(MORE))
    if kind == "outcome_pairs":
        if case.outcome is None:
            return case
        at = case.outcome["difference"]
        ends = [at + (end - at) / math.sqrt(MORE) for end in case.outcome["interval"]]
        return replace(case, outcome={**case.outcome, "interval": ends})
    level = case.level
    if level is None:
        return case
    surer = replace(
        level,
        pairs=MORE * level.pairs,
        ttft_ratio=_nearer(level.ttft_ratio),
        throughput_ratio=_nearer(level.throughput_ratio),
    )
    return replace(case, level=surer)


def _nearer(ratio: Mapping[str, float]) -> dict[str, float]:
    """A ratio whose ends are √MORE times as near on the log scale; as it is where none is."""
    value = ratio["value"]
    if min(ratio.values()) <= 0:
        return dict(ratio)
    return {end: value * (at / value) ** (1 / math.sqrt(MORE)) for end, at in ratio.items()}


def _counts(case: Case) -> dict[str, int]:
    tasks = case.ledger.tasks
    found = {} if tasks is None else {"tasks": len(tasks.wall)}
    if case.level is not None:
        found["block_pairs"] = case.level.pairs
    pairs = (case.outcome or {}).get("pairs")
    if pairs is not None:
        found["outcome_pairs"] = int(pairs)
    return found


def _low(case: Case) -> float:
    found = value_of(case).total
    return math.nan if found is None else found.low
