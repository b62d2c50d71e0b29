"""What saved time is worth: seconds where each costs the same, else each task at its own duration.

Seconds saved and seconds added before first tokens were measured on the same block pairs. Where the
serving gate says how they go together, one draw gives both, and the ends of the net seconds are
quantiles of their difference. A gate that does not say leaves the worst ends: the least saved with
the most added, which covers any dependence and is wider.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.core import task_savings, task_worth
from gatekeeper.core.claims import equation
from gatekeeper.core.pricing_ledger import ENDS, FLIPPED
from gatekeeper.core.task_savings import SavedSeconds
from gatekeeper.core.value import ValueInterval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.pricing_level import Level
    from gatekeeper.core.pricing_terms import Case
    from gatekeeper.core.time_value import TimeRule

__all__ = ["Latency", "ceiling_worth", "latency"]

_Ends = dict[str, float]


@dataclass(frozen=True)
class Latency:
    """Seconds saved by decoding and added before first tokens, and what that is worth.

    ``kept`` is the tasks kept per task, where a fitted curve of abandonment is the price.
    """

    saved_s: _Ends | None
    first_token_s: _Ends | None
    kept: _Ends | None
    worth: ValueInterval | None


@equation("value.first_token")
def first_token(calls: float, ttft_s: float, ratio: float) -> float:
    """Seconds per task that speculation adds before first tokens; a gain counts as nothing.

    As if every call of the task were on its critical path: an upper bound of the harm.
    """
    return calls * ttft_s * max(ratio - 1, 0.0)


@equation("value.net_saved")
def net_saved(saved_s: float, first_token_s: float) -> float:
    """Seconds per task saved by decoding less those added before first tokens."""
    return saved_s - first_token_s


def latency(case: Case) -> Latency:
    """Price the time that leaves the task, at the price of the route and the level."""
    book, level = case.ledger, case.level
    rule = _rule(case)
    saved_s = None if level is None else _saved(case, level)
    calls = book.add("calls", "value.task_mean", "calls per task", column="calls")
    if level is None or calls is None:
        return Latency(saved_s, None, None, None)
    ttft = {
        end: {"calls": calls, "ttft_s": level.ttft_s, "ratio": level.ttft_ratio[end]}
        for end in ENDS
    }
    harm = book.ends("first_token_s", "value.first_token", "s per task", ttft)
    if harm is None or saved_s is None:
        return Latency(saved_s, harm, None, None)
    if rule is None:
        _net(case, saved_s, harm)
        return Latency(saved_s, harm, None, None)
    if rule.per_second is not None:
        return Latency(saved_s, harm, None, _constant(case, saved_s, harm, rule.per_second))
    if rule.piecewise is not None:
        price = task_worth.piece_inputs(rule.piecewise)
        unit = f"{case.economics.currency} per task"
        ends = _drawn(case, level, "latency_value", price, unit)
        currency = case.economics.currency
        money = None if ends is None else ValueInterval(**ends, currency=currency)
        return Latency(saved_s, harm, None, money)
    return _abandonment(case, level, rule, saved_s, harm)


def ceiling_worth(case: Case, saved_s: float | None) -> float | None:
    """Worth of decoding in no time at all; None where tasks or prices are unknown."""
    found, book = case.time, case.ledger
    if saved_s is None or found is None:
        return None
    rule, unit = found[1], f"{case.economics.currency} per task"
    if rule.per_second is not None:
        inputs = {"saved_s": saved_s, "value_per_s": rule.per_second}
        return book.add("ceiling", "value.latency", unit, **inputs)
    if rule.piecewise is not None:
        price = task_worth.piece_inputs(rule.piecewise)
        return book.add("ceiling", "value.worth_ceiling", unit, price=price)
    curve = rule.abandonment
    if curve is None or curve.value_of_kept_task is None:
        return None
    price = task_worth.fit_inputs(curve.fit)
    kept = book.add("ceiling.kept", "value.worth_ceiling", "tasks kept per task", price=price)
    if kept is None:
        return None
    worth = curve.value_of_kept_task
    return book.add("ceiling", "value.kept_tasks", unit, kept=kept, value_of_kept_task=worth)


def _rule(case: Case) -> TimeRule | None:
    """Return the rule that holds, and note what is missing where none does."""
    found, prices = case.time, case.economics
    if found is not None:
        return found[1]
    if not prices.value_of_time:
        case.price("value_of_second")
        return None
    load = "a load that is not known yet"
    if case.level is not None:
        load = f"concurrency {case.level.concurrency}"
    case.ledger.need(
        f"value_of_time for route {case.ledger.route} at {load}, or value_of_second, "
        f"in economics {prices.name}"
    )
    return None


def _saved(case: Case, level: Level) -> _Ends | None:
    """Seconds saved by decoding; the three ends of one bootstrap rather than of three."""
    book, tasks = case.ledger, case.ledger.tasks
    if tasks is None:
        return None
    given = {**_draws(level), "replicates": case.replicates}

    def draw() -> SavedSeconds | None:
        return task_savings.saved_seconds(tasks, **given, rng=np.random.default_rng(case.seed))

    found = book.once(["saved_s", given, case.seed], draw)
    if found is None:
        return None
    return _noted(case, ("saved_s", "value.saved", "s per task"), found, given)


def _draws(level: Level) -> dict[str, Any]:
    return {
        "log_ratio": level.log_ratio,
        "sd": level.sd,
        "pairs": level.pairs,
        "confidence": level.confidence,
    }


def _drawn(
    case: Case, level: Level, name: str, price: Mapping[str, Any], unit: str
) -> _Ends | None:
    """Each task's own saving in the unit of ``price``, averaged; with the claims of its ends.

    Prices of pieces are drawn on as multiples of the greatest: what is worth twice as much a second
    saves twice the money, in each replicate.
    """
    scale = 1.0
    if "pieces" in price:
        scale = max(rate for _, rate in price["pieces"]) or 1.0
    book, tasks = case.ledger, case.ledger.tasks
    if tasks is None:
        return None
    given = {
        **_draws(level),
        "price": price,
        "ttft_s": level.ttft_s,
        "ttft_ratio": dict(level.ttft_ratio),
        "replicates": case.replicates,
    }
    if level.log_ttft is not None:
        given["log_ttft"] = dict(level.log_ttft)

    drawn = dict(given)
    if "pieces" in price:
        drawn["price"] = {"pieces": [[start, rate / scale] for start, rate in price["pieces"]]}

    def draw() -> SavedSeconds | None:
        return task_worth.worth_interval(tasks, **drawn, rng=np.random.default_rng(case.seed))

    found = book.once(["worth", drawn, case.seed], draw)
    if found is None:
        return None
    ends = SavedSeconds(found.value * scale, found.low * scale, found.high * scale)
    return _noted(case, (name, "value.worth", unit), ends, given)


def _noted(
    case: Case, named: tuple[str, str, str], found: SavedSeconds, given: Mapping[str, Any]
) -> _Ends:
    """Note the claims of the ends; ``named`` is name, equation and unit."""
    name, formula, unit = named
    return {
        end: case.ledger.note(
            name if end == "value" else f"{name}.{end}",
            formula,
            unit,
            getattr(found, end),
            **given,
            seed=case.seed,
            end=end,
        )
        for end in ENDS
    }


def _net(case: Case, saved_s: _Ends, harm: _Ends) -> _Ends | None:
    """Seconds saved less those added: the ends of one draw of both, else the worst ends."""
    book, level, tasks = case.ledger, case.level, case.ledger.tasks
    worst = {end: {"saved_s": saved_s[end], "first_token_s": harm[FLIPPED[end]]} for end in ENDS}
    named = ("net_saved_s", "value.net_saved", "s per task")
    if level is None or level.log_ttft is None or tasks is None:
        return book.ends(*named, worst)
    value = book.add(*named, **worst["value"])
    together = {"ttft_s": level.ttft_s, "log_ttft": dict(level.log_ttft)}
    given = {**_draws(level), **together, "replicates": case.replicates}

    def draw() -> SavedSeconds | None:
        return task_savings.saved_seconds(tasks, **given, rng=np.random.default_rng(case.seed))

    found = book.once(["net_saved_s", given, case.seed], draw)
    if value is None or found is None:
        return None
    # a gain before first tokens counts as nothing in each draw: the estimate can lie above them all
    high = max(found.high, value)
    inputs = {**given, "seed": case.seed, "estimate": value}
    drawn = SavedSeconds(value, min(found.low, value), high)
    noted = {
        end: book.note(
            f"net_saved_s.{end}",
            "value.net_saved_drawn",
            "s per task",
            getattr(drawn, end),
            **inputs,
            end=end,
        )
        for end in ("low", "high")
    }
    return {"value": value, **noted}


def _constant(case: Case, saved_s: _Ends, harm: _Ends, worth: float) -> ValueInterval | None:
    net = _net(case, saved_s, harm)
    if net is None:
        return None
    money = {end: {"saved_s": net[end], "value_per_s": worth} for end in ENDS}
    currency = case.economics.currency
    return case.ledger.money("latency_value", "value.latency", currency, money)


def _abandonment(case: Case, level: Level, rule: TimeRule, saved_s: _Ends, harm: _Ends) -> Latency:
    """Tasks that are kept, as the fitted curve says at each task's durations, times their worth."""
    curve, found = rule.abandonment, case.time
    if curve is None or found is None:
        return Latency(saved_s, harm, None, None)
    kept = _drawn(case, level, "kept", task_worth.fit_inputs(curve.fit), "tasks kept per task")
    if curve.value_of_kept_task is None:
        name = f"{found[0]}.abandonment.value_of_kept_task"
        case.ledger.need(f"{name} in economics {case.economics.name}")
        return Latency(saved_s, harm, kept, None)
    if kept is None:
        return Latency(saved_s, harm, None, None)
    worth, currency = curve.value_of_kept_task, case.economics.currency
    money = {end: {"kept": kept[end], "value_of_kept_task": worth} for end in ENDS}
    name = "latency_value"
    found_money = case.ledger.money(name, "value.kept_tasks", currency, money)
    return Latency(saved_s, harm, kept, found_money)
